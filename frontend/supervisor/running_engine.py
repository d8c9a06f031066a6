"""An engine core of our own, watched on an event loop: a start that fails and a death later are told at once."""

from __future__ import annotations

import asyncio

from pagewire.ipc.errors import EngineDead, MachineError, PagewireError, StartError

from ..client.engine_client import AsyncEngineClient
from .engine_process import EngineProcess

_LAST_WORDS_S = 1.0  # a core that can't start says why before it ends; its message may arrive after its death


class RunningEngine:
    """A core process and the client attached to it. Make it on the event loop that it is watched by.

    Attributes:
        client: set by `connect`.
    """

    def __init__(self, engine: EngineProcess) -> None:
        self.client: AsyncEngineClient | None = None
        self._process = engine.process
        self._address = engine.address
        self._died = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._process.death_fd, self._on_death)

    async def connect(self, name: str) -> AsyncEngineClient:
        """Attach a client, once the engine is ready.

        Raises:
            StartError: the engine can't start.
        """
        connecting = asyncio.create_task(AsyncEngineClient.connect(self._address, name=name, timeout_s=None))
        death = asyncio.create_task(self._died.wait())
        try:
            await asyncio.wait({connecting, death}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({connecting}, timeout=_LAST_WORDS_S)
            if not connecting.done():
                raise MachineError(
                    f"The engine core ended with exit code {self._process.exit_code} before it was ready; "
                    "its log lines above say more."
                )
            self.client = connecting.result()
        except StartError:
            raise
        except PagewireError as exc:
            raise MachineError(exc.message) from exc
        finally:
            for task in (death, connecting):
                task.cancel()
            await asyncio.gather(death, connecting, return_exceptions=True)
        if self._died.is_set():
            self._mark_dead(self.client)
        return self.client

    async def aclose(self) -> None:
        """Stop watching and leave the engine, which still has to be stopped. Closing twice is fine."""
        self._loop.remove_reader(self._process.death_fd)
        if self.client is not None:
            await self.client.aclose()

    def _on_death(self) -> None:
        self._loop.remove_reader(self._process.death_fd)
        self._died.set()
        if self.client is not None:
            self._mark_dead(self.client)

    def _mark_dead(self, client: AsyncEngineClient) -> None:
        client.mark_dead(EngineDead(f"The engine core ended with exit code {self._process.wait(timeout_s=1.0)}."))
