"""An engine's cores, side by side, and the one client of them all: each core has its own supervisor and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pagewire.ipc.errors import EngineDead

from ..client.engine_client import AsyncEngineClient
from ..client.session import Session
from .engine_process import EngineProcess
from .running_engine import RunningEngine


class RunningFleet:
    """See the module. Make it on the event loop that the cores are watched by.

    Attributes:
        client: of all cores; set by `connect`.
    """

    def __init__(self, processes: Sequence[EngineProcess]) -> None:
        self.client: AsyncEngineClient | None = None
        self._processes = processes
        self._engines = [RunningEngine(process) for process in processes]

    @property
    def address(self) -> str:
        """Where clients of this machine attach to all cores."""
        return self._processes[0].address

    @property
    def given_up(self) -> list[EngineProcess]:
        """Those of whose cores no further one is started, though the last one left no word to its clients."""
        pairs = zip(self._processes, self._engines, strict=True)
        return [process for process, engine in pairs if engine.has_given_up]

    async def connect(self, name: str) -> AsyncEngineClient:
        """Attach a client to every core, once all are ready; from then on cores are started again.

        Raises:
            StartError: a core can't start.
        """
        attaching = [asyncio.create_task(engine.attach(name)) for engine in self._engines]
        try:
            done, _ = await asyncio.wait(attaching, return_when=asyncio.FIRST_EXCEPTION)
            sessions: list[Session] = [task.result() for task in attaching if task in done]
        finally:
            for task in attaching:
                task.cancel()
            await asyncio.gather(*attaching, return_exceptions=True)
        self.client = AsyncEngineClient(sessions)
        return self.client

    async def aclose(self) -> None:
        """Stop watching and leave the cores, which still have to be stopped. Closing twice is fine."""
        if self.client is not None:
            self.client.mark_dead(EngineDead("This client was closed."))
        await asyncio.gather(*(engine.aclose() for engine in self._engines))
