"""A frontend that serves nobody, which a launcher starts in the place of the real one.

What it does wrong stands in the environment variable `FAKE_FRONTEND_FAULT`:

    fails_to_start      it ends with exit code 7 before it is ready
    ends_when_ready     it ends as soon as it has said that it is ready
    never_finishes      it does not end while requests may be under way, which is until it is to stop at once
    hangs               no order ends it
"""

from __future__ import annotations

import os
import sys

from pagewire.ipc.process import read_bootstrap

FAULT = "FAKE_FRONTEND_FAULT"
FAILED = 7


def main() -> int:
    """Say that it is ready, and obey orders."""
    bootstrap = read_bootstrap()
    fault = os.environ.get(FAULT, "")
    if fault == "fails_to_start":
        return FAILED
    assert bootstrap.server_config is not None
    assert all(os.fstat(fd) for fd in bootstrap.listener_fds)
    os.write(bootstrap.ready_fd, b"\0")
    os.close(bootstrap.ready_fd)
    if fault == "ends_when_ready":
        return 0
    os.read(sys.stdin.fileno(), 1)
    while fault in ("never_finishes", "hangs"):
        if not os.read(sys.stdin.fileno(), 1) and fault == "never_finishes":
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
