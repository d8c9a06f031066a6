"""A client's requests outlive its cores: the next one gets them again, in their order, with the tokens so far."""

from __future__ import annotations

import asyncio
import random

import pytest

from pagewire.ipc.errors import DeadlineExceeded, EngineDead, Overloaded
from pagewire.ipc.outputs import FinishReason, StepOutputs, StepStats, TokenDelta
from pagewire.ipc.requests import AbortRequests, AddRequest, CallUtility, EmbedTask, ResumedChild
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.fake_core import until
from tests.support.successive_cores import Cores, added, collect, connect, lost


async def test_streams_go_on_with_the_tokens_that_they_would_have_had(cores: Cores):
    core = await cores.start(num_steps=3)
    async with await connect(cores) as client:
        stream = client.generate([1, 5], SamplingParams(n=2, max_tokens=8))
        await until(lambda: core.num_steps_left == 0)
        first = await anext(stream)
        core = await cores.start()
        tokens = await collect(stream)
        tokens[first.child] = first.token_ids + tokens[first.child]
        assert tokens == {0: list(range(10, 18)), 1: list(range(11, 19))}
        (readded,) = added(core)
        assert readded.is_readded
        assert readded.num_deaths == 1
        assert readded.resumed_children == [ResumedChild(0, [10, 11, 12]), ResumedChild(1, [11, 12, 13])]
        assert (client.core_epoch, client.num_core_restarts, client.is_serving) == (2, 1, True)


async def test_finished_children_are_not_resumed(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        stream = client.generate([1], SamplingParams(n=2, max_tokens=8))
        await core.next(AddRequest)
        deltas = [
            TokenDelta(request_id=1, child=0, token_ids=[7], finish_reason=FinishReason.STOP),
            TokenDelta(request_id=1, child=1, token_ids=[8]),
        ]
        await core.send(StepOutputs(deltas=deltas))
        assert {(await anext(stream)).child for _ in range(2)} == {0, 1}
        core = await cores.start(answers_itself=False)
        assert (await core.next(AddRequest)).resumed_children == [ResumedChild(1, [8])]


async def test_requests_are_added_again_in_their_order_and_new_ones_after_them(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        streams = [client.generate([1], SamplingParams(), label=str(index)) for index in range(3)]
        await core.next(AddRequest, count=3)
        await core.send(StepOutputs(accepted=[1, 2]))
        await asyncio.gather(*(stream.accepted() for stream in streams[:2]))
        await cores.kill()
        await lost(client)
        streams.append(client.generate([1], SamplingParams(), label="3"))
        core = await cores.start(answers_itself=False)
        await core.next(AddRequest, count=4)
        assert [request.label for request in added(core)] == ["0", "1", "2", "3"]
        # Only what a core had accepted may pass its successor's queue bounds.
        assert [request.is_readded for request in added(core)] == [True, True, False, False]
        assert [request.num_deaths for request in added(core)] == [1, 1, 1, 0]


async def test_random_deaths_change_no_token(cores: Cores):
    rng = random.Random(5)
    await cores.start(num_steps=rng.randint(0, 4))
    async with await connect(cores) as client:
        lengths = [rng.randint(1, 60) for _ in range(20)]
        streams = [client.generate([1], SamplingParams(n=2, max_tokens=length)) for length in lengths]
        reading = [asyncio.create_task(collect(stream)) for stream in streams]
        while not all(task.done() for task in reading):
            core = await cores.start(num_steps=rng.randint(1, 6))
            await until(lambda core=core: core.num_steps_left == 0 or client.num_live_requests == 0)
        expected = [{0: list(range(10, 10 + n)), 1: list(range(11, 11 + n))} for n in lengths]
        assert [task.result() for task in reading] == expected
        assert cores.epoch > 5


async def test_what_its_user_ends_meanwhile_is_not_added_again(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        unheard, aborted, closed, kept = (client.generate([1], SamplingParams()) for _ in range(4))
        await core.next(AddRequest, count=4)
        client.abort([1])
        await core.next(AbortRequests)
        await cores.kill()  # before it answers
        await lost(client)
        client.abort([2])
        closed.close()
        for stream in (unheard, aborted):
            assert [delta.finish_reason async for delta in stream] == [FinishReason.ABORT]
        core = await cores.start()
        await collect(kept)
        assert [request.request_id for request in added(core)] == [4]


async def test_calls_under_way_fail_naming_the_restart_and_later_ones_go_to_the_next_core(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        under_way = asyncio.create_task(client.call_utility("a"))
        await core.next(CallUtility)
        await cores.kill()
        with pytest.raises(EngineDead, match="started again"):
            await under_way
        late = asyncio.create_task(client.call_utility("b", 2))
        await cores.start()
        assert await late == ["b", 2]


async def test_deadlines_hold_while_there_is_no_core(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        late = client.generate([1], SamplingParams(), timeout_s=0.05)
        kept = client.generate([1], SamplingParams(), timeout_s=500)
        await core.next(AddRequest, count=2)
        await cores.kill()
        with pytest.raises(DeadlineExceeded, match=r"0\.05 s"):
            await anext(late)
        core = await cores.start()
        await collect(kept)
        (readded,) = added(core)
        assert 400 < readded.timeout_s < 500


async def test_refusal_of_a_request_that_no_core_had_accepted_reaches_its_user(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        stream = client.generate([1], SamplingParams())
        await core.next(AddRequest)
        await cores.start(refuses=lambda request: Overloaded("too many wait"))
        with pytest.raises(Overloaded):
            await stream.accepted()


async def test_only_so_many_new_requests_wait_for_a_core(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores, max_held_back=2) as client:
        streams = [client.generate([1], SamplingParams(max_tokens=1)) for _ in range(5)]
        await core.next(AddRequest, count=5)
        await cores.kill()
        await lost(client)
        streams += [client.generate([1], SamplingParams(max_tokens=1)) for _ in range(2)]
        with pytest.raises(Overloaded, match="2 new requests") as caught:
            client.generate([1], SamplingParams())
        assert caught.value.retry_after_s > 0
        assert client.num_live_requests == 7
        await cores.start()
        assert await asyncio.gather(*map(collect, streams)) == [{0: [10]}] * 7


async def test_bound_of_held_back_requests_says_why_they_wait_and_counts_those_alone(cores: Cores):
    await cores.start(answers_itself=False)
    async with await connect(cores, max_held_back=2) as client:
        suspects = [client.generate([1], SamplingParams(max_tokens=2)) for _ in range(5)]
        for num_added in (5, 1):
            core = await cores.start(answers_itself=False)
            await core.next(AddRequest, count=num_added)
        for stream in suspects[1:]:
            stream.close()
        fresh = [client.generate([1], SamplingParams()) for _ in range(2)]
        with pytest.raises(Overloaded, match="whether a request ends it"):
            client.generate([1], SamplingParams())
        assert [stream.end for stream in fresh] == [None] * 2


async def test_embeddings_are_asked_for_again(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        waiting = asyncio.create_task(client.embed([5, 6, 7], EmbedTask(pooling="mean")))
        await core.next(AddRequest)
        core = await cores.start()
        assert (await waiting).floats() == [3.0, 5.0, 1.0]
        (readded,) = added(core)
        assert readded.resumed_children == []


async def test_an_embedding_that_nobody_waits_for_is_aborted(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        waiting = asyncio.create_task(client.embed([5, 6, 7]))
        await core.next(AddRequest)
        waiting.cancel()
        assert (await core.next(AbortRequests)).request_ids == [1]


@pytest.mark.parametrize(
    ("stats", "orders"),
    [
        (StepStats(is_paused=True), [("pause", ["keep", False])]),
        (StepStats(sleep_level=2), [("sleep", [2, "keep"])]),
        (StepStats(is_paused=True, sleep_level=1), [("pause", ["keep", False]), ("sleep", [1, "keep"])]),
        (StepStats(), []),
    ],
)
async def test_the_next_core_rests_as_the_last_one_did(cores: Cores, stats: StepStats, orders):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        stream = client.generate([1], SamplingParams())
        await core.next(AddRequest)
        await core.send(StepOutputs(accepted=[1], stats=stats))
        await until(lambda: client.stats == stats)
        core = await cores.start(answers_itself=False)
        (request,) = [await core.next(AddRequest)]
        received = [(message.method, message.args) for message in core.received if isinstance(message, CallUtility)]
        assert received == orders
        assert request.num_deaths == (0 if orders else 1), "who rests ends no core"
        stream.close()
