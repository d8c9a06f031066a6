"""How clients learn what the engine serves: `Ready`, as soon as there is something to say."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from pagewire.ipc.adapters import Adapter
from pagewire.ipc.channels import ClientId
from pagewire.ipc.codec import PROTOCOL_VERSION
from pagewire.ipc.outputs import EngineInfo, Ready, StepOutputs

from ..engine import Engine
from .registry import ClientRegistry


class Welcome:
    """Keeps the `Ready` of this core, and who waits for it.

    Args:
        clients: are told.
        core_epoch, engine_id: see `Ready`.
    """

    def __init__(self, clients: ClientRegistry, *, core_epoch: int, engine_id: str) -> None:
        self._clients = clients
        self._core_epoch = core_epoch
        self._engine_id = engine_id
        self._ready: Ready | None = None
        self._waiting: set[ClientId] = set()

    def greet(self, client: ClientId, engine: Engine | None, now: float) -> None:
        """Answer a client that said `Hello`, now or by `begin`."""
        if self._ready is None or engine is None:
            self._waiting.add(client)
            return
        self._clients.send(client, self._ready, now)
        stats = engine.stats
        if not stats.is_serving or engine.rest.is_on:
            self._clients.send(client, StepOutputs(stats=stats), now)

    def begin(self, info: EngineInfo, now: float) -> None:
        """Tell those who wait what is served from here on."""
        self._ready = Ready(
            protocol_version=PROTOCOL_VERSION, core_epoch=self._core_epoch, info=info, engine_id=self._engine_id
        )
        for client in self._waiting:
            self._clients.send(client, self._ready, now)
        self._waiting.clear()

    def forget(self, client: ClientId) -> None:
        """Note that a client went away."""
        self._waiting.discard(client)

    def tell_adapters(self, adapters: Sequence[Adapter]) -> None:
        """Tell all clients, and those that come, which adapters there are now."""
        if self._ready is not None:
            info = msgspec.structs.replace(self._ready.info, adapters=tuple(adapters))
            self._ready = msgspec.structs.replace(self._ready, info=info)
        self._clients.send_to_all(StepOutputs(adapters=list(adapters)), time.monotonic())
