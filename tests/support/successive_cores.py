"""Scripted cores on real sockets, which are at one address one after the other, and what their clients see."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pagewire.frontend.client.core_link import LinkOptions
from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.ipc.outputs import FinishReason, StepOutputs, TokenDelta
from pagewire.ipc.requests import AddRequest
from tests.support.fake_core import FakeCore, until

TICK_S = 0.005


class Cores:
    """The cores at one address, of which one at a time runs."""

    def __init__(self, directory: Path) -> None:
        self.address = f"ipc://{directory}/core.sock"
        self.epoch = 0
        self._running = contextlib.AsyncExitStack()

    async def start(self, **options) -> FakeCore:
        """Start the next one; one that still runs is killed."""
        await self.kill()
        self.epoch += 1
        core = FakeCore(address=self.address, core_epoch=self.epoch, **options)
        return await self._running.enter_async_context(core)

    async def kill(self) -> None:
        await self._running.aclose()


async def connect(cores: Cores, **options) -> AsyncEngineClient:
    times = {"ping_interval_s": TICK_S, "silence_limit_s": 5.0, **options}
    return await AsyncEngineClient.connect(cores.address, options=LinkOptions(**times))


async def collect(stream) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    async for delta in stream:
        tokens.setdefault(delta.child, []).extend(delta.token_ids)
    return tokens


def added(core: FakeCore) -> list[AddRequest]:
    return [message for message in core.received if isinstance(message, AddRequest)]


def token(request_id: int, index: int, reason: FinishReason | None = None) -> TokenDelta:
    return TokenDelta(request_id=request_id, first_index=index, token_ids=[100 + index], finish_reason=reason)


async def lost(client: AsyncEngineClient) -> None:
    """Wait until the client knows that its core is gone."""
    await until(lambda: not client.is_serving)


async def scheduled(core: FakeCore, *request_ids: int) -> None:
    """Have the client told that requests are in a step, and wait until it knows."""
    await core.send(StepOutputs(scheduled=list(request_ids)))
    num_pings = core.num_pings
    await until(lambda: core.num_pings > num_pings + 1)  # it takes in what came before it sends the next
