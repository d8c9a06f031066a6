"""An engine is drained when it has no request left, and not as long as its clients may still come back with theirs."""

from __future__ import annotations

import asyncio
import os
from typing import cast

import pytest

from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.frontend.supervisor import shutdown
from pagewire.ipc.process import ParentWatch
from pagewire.ipc.requests import CallUtility
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.fake_core import FakeCore, until


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "DRAIN_POLL_S", 0.001)


async def test_core_that_is_empty_and_the_first_is_drained_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutdown, "SETTLE_S", 1000.0)
    async with FakeCore() as core, await AsyncEngineClient.connect(core.address) as client, asyncio.timeout(10):
        await shutdown.drain_engine(client, timeout_s=5.0)


async def test_restarted_core_is_drained_when_its_clients_have_come_back_and_are_done(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutdown, "SETTLE_S", 0.5)
    async with (
        FakeCore(core_epoch=2, num_steps=0) as core,
        await AsyncEngineClient.connect(core.address) as client,
        asyncio.timeout(20),
    ):
        draining = asyncio.create_task(shutdown.drain_engine(client, timeout_s=15.0))
        await core.next(CallUtility, count=3)
        assert not draining.done(), "it was empty three times"
        async with await AsyncEngineClient.connect(core.address) as other:
            stream = other.generate([1], SamplingParams(max_tokens=2))
            await stream.accepted()
            num_calls = sum(isinstance(message, CallUtility) for message in core.received)
            await core.next(CallUtility, count=num_calls + 3)
            assert not draining.done()
            core.allow_steps(None)
            assert [token async for delta in stream for token in delta.token_ids] == [10, 11]
        await draining


async def test_death_amid_the_drain_begins_the_wait_anew(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setattr(shutdown, "SETTLE_S", 0.3)
    address = f"ipc://{tmp_path}/core.sock"
    async with asyncio.timeout(20):
        async with FakeCore(address=address, num_steps=0) as core:
            client = await AsyncEngineClient.connect(address)
            stream = client.generate([1], SamplingParams(max_tokens=2))
            await stream.accepted()
            draining = asyncio.create_task(shutdown.drain_engine(client, timeout_s=15.0))
            await core.next(CallUtility)
        async with FakeCore(address=address, core_epoch=2) as core, client:
            await until(lambda: client.core_epoch == 2)
            started = asyncio.get_running_loop().time()
            await draining
            assert asyncio.get_running_loop().time() - started >= 0.25


class PipeWatch:
    """A parent's pipe without a parent."""

    def __init__(self) -> None:
        self.stdin_fd, self.its_end = os.pipe()
        self.fds = [self.stdin_fd]


async def test_launchers_first_word_asks_to_finish_and_the_end_of_its_pipe_to_stop_at_once():
    watch = PipeWatch()
    orders = shutdown.ParentOrders(cast("ParentWatch", watch))
    orders.check()
    os.write(watch.its_end, b"\0")
    await asyncio.wait_for(orders.first.wait(), 5)
    assert not orders.second.is_set()
    with pytest.raises(shutdown.Stopped):
        orders.check()
    os.close(watch.its_end)
    await asyncio.wait_for(orders.second.wait(), 5)
    os.close(watch.stdin_fd)
