"""An engine of this process's own, with its client on an event loop in a thread: what `LLM` runs on."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import EngineDead

from ..client.engine_client import AsyncEngineClient
from ..client.loop_thread import LoopThread
from ..supervisor.engine_process import start_cores, stop_cores
from ..supervisor.running_fleet import RunningFleet

T = TypeVar("T")


class OfflineEngine:
    """Starts the engine's cores at once. Whoever makes it closes it."""

    def __init__(self, config: EngineConfig) -> None:
        """Start the cores with a config of `prepare_engine`."""
        self._owner_pid = os.getpid()
        self._cores = start_cores(config)
        self._thread = LoopThread("llm")
        self._running: RunningFleet | None = None

    def attach(self, meanwhile: Callable[[], T]) -> tuple[AsyncEngineClient, T]:
        """Wait until the engine is ready; `meanwhile` runs while it loads.

        Raises:
            StartError: the engine can't start.
        """
        attaching = self._thread.start(self._connect())
        value = meanwhile()
        return attaching.result(), value

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:  # Any: what asyncio sends
        """Run a coroutine on the client's event loop; Ctrl-C cancels it.

        Raises:
            EngineDead: the engine was closed, or is another process's.
        """
        if not self._thread.is_running:
            coroutine.close()
            if os.getpid() != self._owner_pid:
                raise EngineDead("This LLM belongs to the process that this one was forked from; make one here.")
            raise EngineDead("This LLM was shut down; make a new one.")
        return self._thread.run(coroutine)

    def __reduce__(self) -> NoReturn:
        """Refuse to be sent to another process: the engine's own are children of this one."""
        raise TypeError("an LLM can't be sent to another process; make one there, or share an engine by EngineClient.")

    def close(self) -> None:
        """Abort what runs, stop the cores and their executors. Closing twice is fine."""
        self._thread.run_outside(self._close)

    def _close(self) -> None:
        if self._thread.is_running:
            if self._running is not None:
                self._thread.run(self._running.aclose())
            self._thread.close()
        stop_cores(self._cores)

    async def _connect(self) -> AsyncEngineClient:
        self._running = RunningFleet(self._cores)
        return await self._running.connect("llm")
