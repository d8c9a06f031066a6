"""A client outlives its cores: scripted ones on real sockets, which are at one address one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pagewire.frontend.client.core_link import LinkOptions
from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.ipc.errors import ClientGivenUp, DeadlineExceeded, EngineDead, ErrorInfo, Overloaded, PoisonRequest
from pagewire.ipc.outputs import FinishReason, Goodbye, RequestEnd, StepOutputs, StepStats, TokenDelta
from pagewire.ipc.requests import AbortRequests, AddRequest, CallUtility, Hello, ResumedChild
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.fake_core import FakeCore, engine_info, until

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


@pytest.fixture
async def cores(tmp_path: Path) -> AsyncIterator[Cores]:
    cores = Cores(tmp_path)
    yield cores
    await cores.kill()


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


async def scheduled(core: FakeCore, *request_ids: int) -> None:
    """Have the client told that requests are in a step, and wait until it knows."""
    await core.send(StepOutputs(scheduled=list(request_ids)))
    num_pings = core.num_pings
    await until(lambda: core.num_pings > num_pings + 1)  # it takes in what came before it sends the next


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


async def test_core_of_another_engine_of_the_same_epoch_is_another_core(cores: Cores):
    core = await cores.start(answers_itself=False, engine_id="a")
    async with await connect(cores) as client:
        stream = client.generate([1], SamplingParams(max_tokens=3))
        await core.next(AddRequest)
        cores.epoch = 0
        core = await cores.start(engine_id="b")
        assert await collect(stream) == {0: [10, 11, 12]}
        assert added(core)[0].num_deaths == 1
        assert (client.core, client.core_epoch, client.num_core_restarts) == (("b", 1), 1, 1)


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


async def test_silent_core_is_reported_and_its_successor_found(cores: Cores):
    reports: list[bool] = []
    core = await cores.start(answers_itself=False)
    async with await connect(cores, silence_limit_s=0.1, on_silence=reports.append) as client:
        stream = client.generate([1], SamplingParams(max_tokens=3))
        await core.next(AddRequest)
        core.is_stopped = True
        await until(lambda: len(reports) > 2)
        assert reports[0], "it had answered before"
        assert not client.is_serving
        await cores.start()
        assert await collect(stream) == {0: [10, 11, 12]}


async def test_core_that_hangs_before_its_first_ready_is_reported(cores: Cores):
    reports: list[bool] = []
    core = await cores.start()
    core.is_stopped = True
    connecting = asyncio.create_task(connect(cores, silence_limit_s=0.1, on_silence=reports.append))
    await until(lambda: len(reports) > 1)
    assert not any(reports), "it never said anything"
    await cores.start()
    async with await connecting as client:
        assert client.is_serving


async def test_connection_that_breaks_is_no_death_of_its_core(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        stream = client.generate([1], SamplingParams(max_tokens=3))
        await core.next(AddRequest)
        await cores.kill()
        cores.epoch -= 1  # the same life
        core = await cores.start()
        assert await collect(stream) == {0: [10, 11, 12]}
        assert added(core)[0].num_deaths == 0


async def test_client_that_its_core_has_given_up_attaches_anew(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        stream = client.generate([1], SamplingParams(max_tokens=3))
        await core.next(AddRequest)
        core.answers_itself = True
        await core.send(Goodbye(error=ClientGivenUp("it did not read").to_info()))
        assert await collect(stream) == {0: [10, 11, 12]}
        await core.next(Hello, count=2)
        assert [request.num_deaths for request in added(core)] == [0, 0]


async def test_engine_without_a_core_is_dead_after_the_limit(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores, reconnect_limit_s=0.2) as client:
        stream = client.generate([1], SamplingParams())
        await core.next(AddRequest)
        await cores.kill()
        with pytest.raises(EngineDead, match="no core has answered for"):
            await stream.accepted()
        with pytest.raises(EngineDead):
            client.generate([1], SamplingParams())
        assert isinstance(client.death, EngineDead)


async def test_goodbye_is_final(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        stream = client.generate([1], SamplingParams())
        await core.next(AddRequest)
        await core.send(Goodbye(error=ErrorInfo(kind="EngineDead", message="stopped in order")))
        with pytest.raises(EngineDead, match="in order"):
            await anext(stream)
        core = await cores.start()
        assert not client.is_serving
        assert not core.received


async def test_goodbye_of_the_next_core_is_final_as_well(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        stream = client.generate([1], SamplingParams())
        await core.next(AddRequest)
        await cores.start(hello_error=ErrorInfo(kind="MachineError", message="no memory is left"))
        with pytest.raises(Exception, match="no memory is left"):
            await anext(stream)


async def test_another_engine_at_the_address_gets_no_requests(cores: Cores):
    core = await cores.start(answers_itself=False)
    async with await connect(cores) as client:
        stream = client.generate([1], SamplingParams())
        await core.next(AddRequest)
        core = await cores.start(info=engine_info(vocab_size=99))
        with pytest.raises(EngineDead, match="vocab_size is 99, and was 512"):
            await anext(stream)
        assert [type(message) for message in core.received] == [Hello]


async def test_figures_of_a_dead_core_are_not_shown_for_the_next(cores: Cores):
    core = await cores.start()
    async with await connect(cores) as client:
        await core.send(StepOutputs(stats=StepStats(num_running=3, is_serving=False)))
        await lost(client)
        assert client.stats.num_running == 3
        await cores.start()
        await until(lambda: client.core_epoch == 2)
        assert client.stats == StepStats(num_blocks=core.info.num_blocks)
        assert client.is_serving


async def test_probe_asks_an_idle_core(cores: Cores):
    reports: list[bool] = []
    core = await cores.start()
    async with await connect(cores, silence_limit_s=0.1, on_silence=reports.append) as client:
        assert await client.probe(0), "it was heard just now"
        client._session.link._heard_at -= 1
        assert await client.probe(5)
        assert core.num_pings > 0
        core.is_stopped = True
        client._session.link._heard_at -= 1
        assert not await client.probe(0.01)
        await until(lambda: bool(reports))  # a probe without an answer has the core watched
        await cores.kill()
        assert not await client.probe(0.01)


async def test_closing_while_there_is_no_core_leaves_no_task(cores: Cores):
    before = asyncio.all_tasks()
    core = await cores.start(answers_itself=False)
    client = await connect(cores)
    stream = client.generate([1], SamplingParams())
    await core.next(AddRequest)
    await cores.kill()
    await lost(client)
    await client.aclose()
    with pytest.raises(EngineDead, match="closed"):
        await anext(stream)
    assert asyncio.all_tasks() == before
