"""A child process for tests: reads its bootstrap, then waits to be ended by its parent's order or death."""

from __future__ import annotations

import os
import select
import sys
import threading
from pathlib import Path

from pagewire.ipc.process import (
    ChildProcess,
    ParentWatch,
    die_with_parent,
    read_bootstrap,
    wake_when_parent_ends,
)

if __name__ == "__main__":
    bootstrap = read_bootstrap()
    if bootstrap.name == "poller":  # as the engine core does: it cleans up, and is not killed with its parent
        wake_when_parent_ends()
        sys.stdout.write("polls\n")
        sys.stdout.flush()
        select.select(ParentWatch(bootstrap.parent_pid).fds, [], [])
        os._exit(0)
    die_with_parent(bootstrap)
    if bootstrap.name == "parent":
        # Starts a child of its own from a thread, so that the kernel's parent-death signal is not in play.
        def start() -> None:
            child = ChildProcess(
                "tests.support.idle_child", name="grandchild", address="", runtime_dir=Path("/"), log_level="info"
            )
            sys.stdout.write(f"{child.pid}\n")
            sys.stdout.flush()
            threading.Event().wait()

        threading.Thread(target=start, daemon=True).start()
    elif bootstrap.name == "exit 3":
        os._exit(3)
    threading.Event().wait()
