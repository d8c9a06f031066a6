"""Calls of a core's utilities: answers find their callers."""

from __future__ import annotations

import asyncio

import pytest

from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.ipc.errors import EngineError, InvalidRequest
from pagewire.ipc.outputs import UtilityResult
from pagewire.ipc.requests import CallUtility, Hello
from tests.support.fake_core import FakeCore


async def test_utility_results_and_errors_reach_their_caller():
    async with FakeCore() as core, await AsyncEngineClient.connect(core.address) as client:
        answers = await asyncio.gather(client.call_utility("a", 1), client.call_utility("b", "x", None))
        assert answers == [["a", 1], ["b", "x", None]]
        core.answers_itself = False
        failing = asyncio.create_task(client.call_utility("c"))
        call = await core.next(CallUtility, count=3)
        await core.send(UtilityResult(call_id=call.call_id, error=InvalidRequest("no such method").to_info()))
        with pytest.raises(InvalidRequest, match="no such"):
            await failing
        with pytest.raises(EngineError, match=r"no answer to d within 0\.01 s"):
            await client.call_utility("d", timeout_s=0.01)


@pytest.mark.parametrize("arguments", [("echo", [1]), ("echo", object()), ("echo", 2**70), ("echo", "\ud83d"), (5,)])
async def test_call_that_the_core_could_not_read_is_refused_and_costs_nothing_else(arguments):
    async with FakeCore() as core, await AsyncEngineClient.connect(core.address) as client:
        with pytest.raises(InvalidRequest, match="wrong type"):
            await client.call_utility(*arguments)
        assert [type(message) for message in core.received] == [Hello]
        assert await client.call_utility("echo", 1) == ["echo", 1]
