"""How a supervisor ends: the first signal has it finish what it has accepted, a second one stop at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Coroutine, Sequence
from types import FrameType
from typing import Any, TypeVar

from pagewire.ipc.errors import EngineError
from pagewire.ipc.process import ParentWatch

from ..client.engine_client import AsyncEngineClient
from .engine_process import EngineProcess, stop_cores

logger = logging.getLogger(__name__)

T = TypeVar("T")

DRAIN_POLL_S = 0.1
SETTLE_S = 1.5  # a core that was started again knows of no request until its clients have come back
LAST_MOMENT_S = 1.0  # an ordered stop takes some tenths of a second, and tells all clients why


class Stopped(Exception):
    """A signal asks for an end."""


class StopRequests:
    """Whether this process is asked to end.

    Attributes:
        first: set when it is: stop in order.
        second: set when it is asked again: stop at once.
        exit_code: of a process that was asked before it was ready.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.exit_code = 0

    def check(self) -> None:
        """Go on unless it is asked to end.

        Raises:
            Stopped: it is.
        """
        if self.first.is_set():
            raise Stopped


class StopSignals(StopRequests):
    """SIGTERM and SIGINT, from here on; the exit code of the first is as shells report it."""

    def __init__(self) -> None:
        super().__init__()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._take, number)

    def _take(self, number: int) -> None:
        if self.first.is_set():
            self.second.set()
        else:
            self.exit_code = _exit_code_of(number)
            self.first.set()


class ParentOrders(StopRequests):
    """A launcher's orders to a frontend: a byte on its standard input to stop in order, its end to do so at once."""

    def __init__(self, watch: ParentWatch) -> None:
        super().__init__()
        self._stdin_fd = watch.stdin_fd
        loop = asyncio.get_running_loop()
        for fd in watch.fds:
            loop.add_reader(fd, self._take, fd)

    def _take(self, fd: int) -> None:
        if fd != self._stdin_fd or not os.read(fd, 1):  # the parent has ended, or closed the pipe
            asyncio.get_running_loop().remove_reader(fd)
            self.second.set()
        self.first.set()


def exit_at_sigterm() -> None:
    """Have SIGTERM end this process in order, as SIGINT does, until `StopSignals` takes it: what is open is closed."""
    signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(_exit_code_of(number))


def _exit_code_of(number: int) -> int:
    return 128 + number


async def until_stopped(work: Awaitable[T], stop: asyncio.Event) -> T:
    """Await `work`.

    Raises:
        Stopped: `stop` was set first; `work` is cancelled.
    """
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Stopped
        return working.result()
    finally:
        stopping.cancel()
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


async def serve_until_stopped(
    client: AsyncEngineClient,
    draining: Coroutine[Any, Any, None],  # Any: as above
    signals: StopRequests,
    timeout_s: float,
    *,
    ended: Awaitable[None] | None = None,
) -> int:
    """Wait for a signal, and then for `draining`; return the exit code.

    Args:
        client: of the engine, whose end is the end of all.
        draining: refuses new requests, and returns when the accepted ones are done, or after `timeout_s`.
        signals: the second ends `draining`.
        timeout_s: for the log.
        ended: to wait for instead of the client's death.
    """
    try:
        await until_stopped(client.wait_dead() if ended is None else ended, signals.first)
    except Stopped:
        logger.info("stopping: accepted requests have %g s to finish; a second signal ends them now", timeout_s)
        with contextlib.suppress(Stopped):
            await until_stopped(draining, signals.second)
    finally:
        draining.close()  # one that was never begun; else it is over
    if client.death is None:
        return 0
    logger.error("the engine is gone: %s", client.death)
    return 1


async def stop_engine(cores: Sequence[EngineProcess], signals: StopRequests) -> None:
    """Stop the engine's processes in order; with a second signal, those that hang are given no more time."""
    stopping = asyncio.create_task(asyncio.to_thread(stop_cores, cores))
    second = asyncio.create_task(signals.second.wait())
    await asyncio.wait({stopping, second}, return_when=asyncio.FIRST_COMPLETED)
    second.cancel()
    await asyncio.wait({stopping}, timeout=LAST_MOMENT_S)
    if not stopping.done():
        for core in cores:
            core.process.begin_kill()  # its executors end with it
    await stopping


async def drain_engine(client: AsyncEngineClient, timeout_s: float) -> None:
    """Have the engine refuse new requests of all its clients; return when none is left, or after `timeout_s`."""
    clock = asyncio.get_running_loop().time
    cores, empty_since = client.cores, None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while client.death is None:
                # A core that was started again meanwhile takes requests, so it is told each time.
                with contextlib.suppress(EngineError):
                    num_left = await client.call_utility("drain")
                    if num_left or client.cores != cores:
                        cores, empty_since = client.cores, None
                    else:
                        empty_since = clock() if empty_since is None else empty_since
                        if clock() - empty_since >= (SETTLE_S if client.num_core_restarts else 0.0):
                            return
                await asyncio.sleep(DRAIN_POLL_S)
