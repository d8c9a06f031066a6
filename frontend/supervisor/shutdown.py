"""How a supervisor ends: the first signal has it finish what it has accepted, a second one stop at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Coroutine
from types import FrameType
from typing import Any, TypeVar

from pagewire.ipc.errors import EngineError

from ..client.engine_client import AsyncEngineClient
from .engine_process import EngineProcess

logger = logging.getLogger(__name__)

T = TypeVar("T")

DRAIN_POLL_S = 0.1
SETTLE_S = 1.5  # a core that was started again knows of no request until its clients have come back
LAST_MOMENT_S = 1.0  # an ordered stop takes some tenths of a second, and tells all clients why


class Stopped(Exception):
    """A signal asks for an end."""


class StopSignals:
    """SIGTERM and SIGINT, from here on.

    Attributes:
        first: set by one of them: stop in order.
        second: set by the next: stop at once.
        exit_code: of a process that the first one ended before it was ready, as shells report it.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.exit_code = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._take, number)

    def check(self) -> None:
        """Go on unless one has come.

        Raises:
            Stopped: one has.
        """
        if self.first.is_set():
            raise Stopped

    def _take(self, number: int) -> None:
        if self.first.is_set():
            self.second.set()
        else:
            self.exit_code = _exit_code_of(number)
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
    signals: StopSignals,
    timeout_s: float,
) -> int:
    """Wait for a signal, and then for `draining`; return the exit code.

    Args:
        client: of the engine, whose end is the end of all.
        draining: refuses new requests, and returns when the accepted ones are done, or after `timeout_s`.
        signals: the second ends `draining`.
        timeout_s: for the log.
    """
    try:
        await until_stopped(client.wait_dead(), signals.first)
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


async def stop_engine(engine: EngineProcess, signals: StopSignals) -> None:
    """Stop the engine's processes in order; with a second signal, those that hang are given no more time."""
    stopping = asyncio.create_task(asyncio.to_thread(engine.stop))
    second = asyncio.create_task(signals.second.wait())
    await asyncio.wait({stopping, second}, return_when=asyncio.FIRST_COMPLETED)
    second.cancel()
    await asyncio.wait({stopping}, timeout=LAST_MOMENT_S)
    if not stopping.done():
        engine.process.begin_kill()  # its executors end with it
    await stopping


async def drain_engine(client: AsyncEngineClient, timeout_s: float) -> None:
    """Have the engine refuse new requests of all its clients; return when none is left, or after `timeout_s`."""
    clock = asyncio.get_running_loop().time
    core_epoch, empty_since = client.core_epoch, None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while client.death is None:
                # A core that was started again meanwhile takes requests, so it is told each time.
                with contextlib.suppress(EngineError):
                    num_left = await client.call_utility("drain")
                    if num_left or client.core_epoch != core_epoch:
                        core_epoch, empty_since = client.core_epoch, None
                    else:
                        empty_since = clock() if empty_since is None else empty_since
                        if clock() - empty_since >= (SETTLE_S if client.num_core_restarts else 0.0):
                            return
                await asyncio.sleep(DRAIN_POLL_S)
