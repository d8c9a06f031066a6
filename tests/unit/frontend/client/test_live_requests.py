"""Which requests a core's death is blamed on: suspects run alone, and one that ends cores alone fails."""

from __future__ import annotations

import pytest

from pagewire.ipc.errors import PoisonRequest
from pagewire.ipc.outputs import FinishReason, RequestEnd, StepOutputs, StepStats, TokenDelta
from pagewire.ipc.requests import AddRequest
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.fake_core import until
from tests.support.successive_cores import Cores, added, collect, connect, lost, scheduled, token


async def test_suspects_run_alone_and_first_until_they_have_a_token(cores: Cores):
    await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        suspects = [client.generate([1], SamplingParams(max_tokens=2)) for _ in range(2)]
        for num_deaths in (1, 2):
            core = await cores.start(answers_itself=False)
            await core.next(AddRequest, count=1 if num_deaths == 2 else 2)
        fresh = client.generate([1], SamplingParams(max_tokens=2))
        await core.send(StepOutputs(accepted=[1]))
        await suspects[0].accepted()
        assert [(request.request_id, request.num_deaths) for request in added(core)] == [(1, 2)]
        await core.send(StepOutputs(deltas=[token(1, 0)]))
        await core.next(AddRequest, count=2)
        assert [(request.request_id, request.num_deaths) for request in added(core)][1:] == [(2, 2)]
        await core.send(StepOutputs(deltas=[token(2, 0)]))
        await core.next(AddRequest, count=3)
        assert [(request.request_id, request.num_deaths) for request in added(core)][2:] == [(3, 0)]
        for request_id, stream in zip((1, 2, 3), [*suspects, fresh], strict=True):
            start = 0 if request_id == 3 else 1
            deltas = [token(request_id, index) for index in range(start, 2)]
            await core.send(StepOutputs(deltas=deltas))
            end = TokenDelta(request_id=request_id, first_index=2, finish_reason=FinishReason.LENGTH)
            await core.send(StepOutputs(deltas=[end], ends=[RequestEnd(request_id=request_id)]))
            assert await collect(stream) == {0: [100, 101]}


async def test_request_that_ends_cores_alone_fails_and_no_other(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        poison, other = (client.generate([1], SamplingParams(max_tokens=2)) for _ in range(2))
        await core.next(AddRequest, count=2)
        for num_added in (2, 1, 1, 1):  # together, and then alone
            core = await cores.start(answers_itself=False)
            await core.next(AddRequest, count=num_added)
        assert [request.request_id for request in added(core)] == [1]
        core = await cores.start()
        with pytest.raises(PoisonRequest, match=r"5 times in a row, 3 of them while it ran alone"):
            await anext(poison)
        assert await collect(other) == {0: [10, 11]}
        assert [request.num_deaths for request in added(core)] == [2], "the last deaths were not with it"


async def test_requests_that_only_waited_in_a_core_have_no_part_in_its_end(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        streams = [client.generate([1], SamplingParams()) for _ in range(3)]
        for num_deaths in range(2):
            await core.next(AddRequest, count=3)
            assert [request.num_deaths for request in added(core)] == [num_deaths, 0, 0]
            await scheduled(core, 1)
            core = await cores.start(answers_itself=False)
        await core.next(AddRequest)
        assert [(request.request_id, request.num_deaths) for request in added(core)] == [(1, 2)], "it runs alone"
        assert [stream.end for stream in streams] == [None] * 3


async def test_end_of_a_core_before_its_first_step_may_be_due_to_any_request(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        streams = [client.generate([1], SamplingParams()) for _ in range(2)]
        await core.next(AddRequest, count=2)
        core = await cores.start(answers_itself=False)
        await core.next(AddRequest, count=2)
        assert [request.num_deaths for request in added(core)] == [1, 1]
        assert [stream.end for stream in streams] == [None] * 2


async def test_suspect_was_not_alone_while_others_were_in_a_step_and_it_was_not(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        cleared, suspect = (client.generate([1], SamplingParams(max_tokens=2)) for _ in range(2))
        await core.next(AddRequest, count=2)
        for num_added in (2, 1):
            core = await cores.start(answers_itself=False)
            await core.next(AddRequest, count=num_added)
        for _ in range(5):  # often enough to blame it
            first = added(core)[0]
            if first.request_id == 1:
                known = cleared._mailbox.entry.output_token_ids[0]
                await core.send(StepOutputs(scheduled=[1], deltas=[token(1, len(known))]))
                await core.next(AddRequest, count=2)
            entry = suspect._mailbox.entry
            num_alone = entry.num_deaths_alone
            core = await cores.start(answers_itself=False)
            await core.next(AddRequest)
            assert entry.num_deaths_alone == num_alone + (first.request_id == 2)
            if entry.num_deaths_alone:
                return
        pytest.fail("the suspect never ran alone")


async def test_death_of_a_core_that_loads_an_executor_is_no_requests_fault(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        stream = client.generate([1], SamplingParams())
        for _ in range(3):
            await core.next(AddRequest)
            await scheduled(core, 1)
            await core.send(StepOutputs(stats=StepStats(is_serving=False)))
            await lost(client)
            core = await cores.start(answers_itself=False)
        assert (await core.next(AddRequest)).num_deaths == 0
        assert stream.end is None


async def test_conviction_is_told_as_the_next_core_may_do_better(cores: Cores):
    convictions: list[int] = []
    core = await cores.start(answers_itself=False)
    async with await connect(cores, on_conviction=lambda: convictions.append(cores.epoch)) as client:
        poison = [client.generate([1], SamplingParams()) for _ in range(2)]
        await core.next(AddRequest, count=2)
        while client.num_live_requests:
            core = await cores.start(answers_itself=False)
            if len(convictions) < 2:
                await until(lambda core=core: added(core) or not client.num_live_requests)
        for stream in poison:
            with pytest.raises(PoisonRequest):
                await anext(stream)
        assert convictions == [6, 9], "five deaths, and three more"


async def test_a_token_clears_a_request(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        stream = client.generate([1], SamplingParams(max_tokens=9))
        for index in range(4):
            await core.next(AddRequest)
            await core.send(StepOutputs(deltas=[token(1, index)]))
            await anext(stream)
            core = await cores.start(answers_itself=False)
        assert (await core.next(AddRequest)).num_deaths == 1


async def test_suspect_that_its_user_ends_makes_way(cores: Cores):
    await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        suspect, other = (client.generate([1], SamplingParams()) for _ in range(2))
        for num_added in (2, 1):
            core = await cores.start(answers_itself=False)
            await core.next(AddRequest, count=num_added)
        suspect.close()
        assert (await core.next(AddRequest, count=2)).request_id == other.request.request_id
