"""A `FakeCore` as a process of its own, which a supervisor starts in the place of `pagewire.engine_core`.

What it does wrong stands in the environment variable `FAKE_CORE_FAULT`:

    ends_on_add         it ends without a word when the first request comes
    fails_to_start      each but the first ends with exit code 1 before it listens
    hangs_at_start      it never listens
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from pagewire.ipc.process import Bootstrap, ParentWatch, read_bootstrap
from pagewire.ipc.requests import AddRequest
from tests.support.fake_core import FakeCore, engine_info

FAULT = "FAKE_CORE_FAULT"
CRASH_EXIT_CODE = 70


async def serve(bootstrap: Bootstrap, fault: str) -> int:
    """Serve until the parent ends or orders a stop."""
    stopped = asyncio.Event()
    for fd in ParentWatch(bootstrap.parent_pid).fds:
        asyncio.get_running_loop().add_reader(fd, stopped.set)
    # Each core takes a few steps and then waits: what it is asked for goes on in the next one.
    num_steps = 0 if fault == "ends_on_add" else 3
    # Measured anew, a pool would have another size: who takes the place of a core is told its.
    num_blocks = bootstrap.num_blocks or 64 // bootstrap.core_epoch
    core = FakeCore(
        address=bootstrap.address,
        core_epoch=bootstrap.core_epoch,
        num_steps=num_steps,
        info=engine_info(num_blocks=num_blocks),
    )
    async with core:
        if fault == "ends_on_add":
            await core.next(AddRequest)
            return CRASH_EXIT_CODE
        await stopped.wait()
    return 0


if __name__ == "__main__":
    bootstrap = read_bootstrap()
    fault = os.environ.get(FAULT, "")
    if fault == "fails_to_start" and bootstrap.core_epoch > 1:
        sys.exit(1)
    if fault == "hangs_at_start":
        signal.pause()
    # At once, as a crash does: nothing is said to anyone.
    os._exit(asyncio.run(serve(bootstrap, fault)))
