"""The client against a scripted core over real sockets: streams, their ends, and what happens between."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap

import pytest

from pagewire.frontend.client.core_link import LinkOptions
from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.ipc.errors import EngineDead, ErrorInfo, Overloaded, ProtocolError
from pagewire.ipc.outputs import FinishReason, Goodbye, RequestEnd, StepOutputs, StepStats, TokenDelta
from pagewire.ipc.requests import AbortRequests, AddRequest, CallUtility
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.fake_core import FakeCore, until
from tests.support.successive_cores import collect


async def test_tokens_arrive_in_order_per_child():
    async with FakeCore() as core, await AsyncEngineClient.connect(core.address) as client:
        stream = client.generate([1, 5, 6], SamplingParams(n=2, max_tokens=4))
        await stream.accepted()
        assert await collect(stream) == {0: [10, 11, 12, 13], 1: [11, 12, 13, 14]}
        assert stream.start is not None
        assert stream.end is not None
        assert client.num_live_requests == 0


async def test_duplicates_are_dropped_by_their_index():
    async with FakeCore(answers_itself=False) as core, await AsyncEngineClient.connect(core.address) as client:
        stream = client.generate([1], SamplingParams(max_tokens=9))
        await core.next(AddRequest)
        for first_index, token_ids in [(0, [7, 8]), (0, [7, 8]), (1, [8, 9]), (3, [4])]:
            await core.send(StepOutputs(deltas=[delta(first_index, token_ids)]))
        await core.send(StepOutputs(deltas=[delta(4, [], FinishReason.LENGTH)], ends=[RequestEnd(request_id=1)]))
        assert await collect(stream) == {0: [7, 8, 9, 4]}


async def test_missing_tokens_fail_the_request_and_no_other():
    async with FakeCore(answers_itself=False) as core, await AsyncEngineClient.connect(core.address) as client:
        broken, whole = (client.generate([1], SamplingParams(max_tokens=9)) for _ in range(2))
        await core.next(AddRequest, count=2)
        await core.send(StepOutputs(deltas=[delta(0, [7]), delta(2, [9])]))
        with pytest.raises(ProtocolError, match="left out 1 tokens"):
            await collect(broken)
        assert (await core.next(AbortRequests)).request_ids == [1]
        await core.send(
            StepOutputs(deltas=[delta(0, [5], FinishReason.LENGTH, request_id=2)], ends=[RequestEnd(request_id=2)])
        )
        assert await collect(whole) == {0: [5]}


async def test_slow_reader_finds_its_tokens_merged():
    async with FakeCore() as core, await AsyncEngineClient.connect(core.address) as client:
        stream = client.generate([1], SamplingParams(max_tokens=50, logprobs=0))
        await until(lambda: stream.end is not None)
        deltas = [delta async for delta in stream]
        assert len(deltas) == 1
        assert deltas[0].token_ids == list(range(10, 60))
        assert [entry.token_id for entry in deltas[0].logprobs] == list(range(10, 60))
        assert deltas[0].finish_reason is FinishReason.LENGTH


async def test_refusal_by_the_core_is_raised_by_accepted_and_by_iteration():
    async with (
        FakeCore(refuses=lambda request: Overloaded("too many wait")) as core,
        await AsyncEngineClient.connect(core.address) as client,
    ):
        stream = client.generate([1], SamplingParams())
        with pytest.raises(Overloaded, match="too many"):
            await stream.accepted()
        with pytest.raises(Overloaded, match="too many"):
            await anext(stream)
        assert stream.end.is_refused


@pytest.mark.parametrize("how", ["close", "drop", "cancel", "context"])
async def test_leaving_a_stream_early_aborts_its_request(how):
    async with FakeCore(num_steps=1) as core, await AsyncEngineClient.connect(core.address) as client:
        stream = client.generate([1], SamplingParams(max_tokens=None))
        await anext(stream)
        match how:
            case "close":
                stream.close()
            case "drop":
                del stream
                gc.collect()
            case "cancel":
                task = asyncio.create_task(collect(stream))
                del stream
                await core.next_ping()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                del task
                gc.collect()
            case "context":
                async with stream:
                    pass
        assert (await core.next(AbortRequests)).request_ids == [1]
        assert client.num_live_requests == 0


async def test_a_cancelled_wait_for_the_next_token_loses_nothing():
    async with FakeCore(answers_itself=False) as core, await AsyncEngineClient.connect(core.address) as client:
        stream = client.generate([1], SamplingParams(max_tokens=2))
        await core.next(AddRequest)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.001)
        await core.send(StepOutputs(deltas=[delta(0, [7, 8], FinishReason.LENGTH)], ends=[RequestEnd(request_id=1)]))
        assert await collect(stream) == {0: [7, 8]}


async def test_abort_ends_every_child_with_reason_abort():
    async with FakeCore(num_steps=0) as core, await AsyncEngineClient.connect(core.address) as client:
        stream = client.generate([1], SamplingParams(n=2, max_tokens=None))
        await stream.accepted()
        client.abort([stream.request.request_id, 12345])
        assert [(d.child, d.finish_reason) async for d in stream] == [(0, FinishReason.ABORT), (1, FinishReason.ABORT)]


async def test_children_that_the_engine_does_not_finish_count_as_aborted():
    async with FakeCore(answers_itself=False) as core, await AsyncEngineClient.connect(core.address) as client:
        stream = client.generate([1], SamplingParams(n=2))
        await core.next(AddRequest)
        await core.send(StepOutputs(deltas=[delta(0, [7], FinishReason.STOP)], ends=[RequestEnd(request_id=1)]))
        assert [(d.child, d.finish_reason) async for d in stream] == [(0, FinishReason.STOP), (1, FinishReason.ABORT)]


async def test_ended_child_leaves_the_others_running():
    async with FakeCore(num_steps=1) as core, await AsyncEngineClient.connect(core.address) as client:
        stream = client.generate([1], SamplingParams(n=2, max_tokens=20))
        await anext(stream)
        stream.end_child(0)
        core.allow_steps(None)
        assert list(await collect(stream)) == [1]
        assert (await core.next(AbortRequests)).children == [(1, 0)]


async def test_pings_flow_while_a_request_is_live_and_only_then():
    async with (
        FakeCore(num_steps=0) as core,
        await AsyncEngineClient.connect(core.address, options=LinkOptions(ping_interval_s=0.005)) as client,
    ):
        assert core.num_pings == 0
        stream = client.generate([1], SamplingParams(max_tokens=1))
        await core.next_ping(count=3)
        core.allow_steps(None)
        await collect(stream)
        assert client.num_live_requests == 0
        await client.call_utility("settle")  # a Ping under way has arrived after it
        await client.call_utility("settle")
        num_pings = core.num_pings
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.05)
        assert core.num_pings <= num_pings + 1


async def test_goodbye_fails_what_is_live_with_its_reason():
    async with FakeCore(answers_itself=False) as core, await AsyncEngineClient.connect(core.address) as client:
        stream = client.generate([1], SamplingParams())
        call = asyncio.create_task(client.call_utility("x"))
        await core.next(CallUtility)
        await core.send(Goodbye(error=ErrorInfo(kind="EngineDead", message="stopped in order")))
        with pytest.raises(EngineDead, match="in order"):
            await anext(stream)
        with pytest.raises(EngineDead, match="in order"):
            await call


async def test_tokens_that_came_before_a_death_are_delivered_before_the_error():
    async with FakeCore(answers_itself=False) as core, await AsyncEngineClient.connect(core.address) as client:
        stream = client.generate([1], SamplingParams())
        await core.next(AddRequest)
        await core.send(StepOutputs(deltas=[delta(0, [7])], stats=StepStats(num_running=1)))
        await until(lambda: client.stats is not None)
        client.mark_dead(EngineDead("the process ended"))
        client.mark_dead(EngineDead("once is enough"))
        assert (await anext(stream)).token_ids == [7]
        with pytest.raises(EngineDead, match="the process ended"):
            await anext(stream)


async def test_unreadable_message_ends_the_connection():
    async with FakeCore(answers_itself=False) as core, await AsyncEngineClient.connect(core.address) as client:
        stream = client.generate([1], SamplingParams())
        await core.next(AddRequest)
        await core._socket.send_multipart([core.last_client, b"\xc1"])
        with pytest.raises(ProtocolError, match="unreadable"):
            await anext(stream)


async def test_stats_reach_their_listeners():
    async with FakeCore() as core, await AsyncEngineClient.connect(core.address) as client:
        seen: list[StepStats] = []
        client.add_stats_listener(seen.append)
        await collect(client.generate([1], SamplingParams(max_tokens=3)))
        assert [stats.num_generation_tokens for stats in seen] == [1, 2, 3]
        assert client.stats == seen[-1]


async def test_two_clients_do_not_disturb_each_other():
    async with (
        FakeCore() as core,
        await AsyncEngineClient.connect(core.address) as one,
        await AsyncEngineClient.connect(core.address) as other,
    ):
        streams = [client.generate([1], SamplingParams(max_tokens=3)) for client in (one, other, one)]
        assert await asyncio.gather(*map(collect, streams)) == [{0: [10, 11, 12]}] * 3


async def test_close_fails_live_requests_and_leaves_no_task():
    before = asyncio.all_tasks()
    async with FakeCore(num_steps=0) as core:
        client = await AsyncEngineClient.connect(core.address)
        stream = client.generate([1], SamplingParams())
        await client.aclose()
        await client.aclose()
        with pytest.raises(EngineDead, match="closed"):
            await anext(stream)
    assert asyncio.all_tasks() == before


def test_client_needs_only_pyzmq_and_msgspec():
    program = """
        import sys

        class Blocker:
            allowed = {"zmq", "msgspec", "pagewire"} | set(sys.stdlib_module_names)
            def find_spec(self, name, path=None, target=None):
                root = name.partition(".")[0]
                if root not in self.allowed and not root.startswith("__editable__"):
                    raise ImportError(f"{name} is blocked")

        sys.meta_path.insert(0, Blocker())
        from pagewire import AsyncEngineClient, EngineClient, SamplingParams
        print("imported")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "imported\n", "")


def delta(first_index, token_ids, finish_reason=None, *, request_id=1) -> TokenDelta:
    return TokenDelta(request_id=request_id, first_index=first_index, token_ids=token_ids, finish_reason=finish_reason)
