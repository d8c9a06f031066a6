"""Several cores are one engine: what one loses goes on in another, exactly once, and new requests go where it pays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pagewire.frontend.client.core_link import LinkOptions
from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.ipc.block_hash import block_key, extend_digests
from pagewire.ipc.endpoints import core_address
from pagewire.ipc.errors import EngineDead, ErrorInfo, PoisonRequest
from pagewire.ipc.outputs import Goodbye, PrefixCacheChanges, StepOutputs, StepStats
from pagewire.ipc.requests import AddRequest, CallUtility, WatchPrefixCache
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.fake_core import FakeCore, engine_info, until
from tests.support.successive_cores import TICK_S, added, collect, scheduled

BYE = Goodbye(error=ErrorInfo(kind="EngineDead", message="stopped in order"))


class CoresSideBySide:
    """The cores of one engine; any may be started again at its place."""

    def __init__(self, directory: Path, num_cores: int) -> None:
        self.address = f"ipc://{directory}/core.sock"
        self._num_cores = num_cores
        self._epochs = [0] * num_cores
        self._running = [contextlib.AsyncExitStack() for _ in range(num_cores)]

    async def start(self, rank: int, *, max_model_len: int = 256, **options) -> FakeCore:
        await self.kill(rank)
        self._epochs[rank] += 1
        core = FakeCore(
            address=core_address(self.address, rank),
            core_epoch=self._epochs[rank],
            engine_id=str(rank),
            info=engine_info(data_parallel_size=self._num_cores, data_parallel_rank=rank, max_model_len=max_model_len),
            **options,
        )
        return await self._running[rank].enter_async_context(core)

    async def kill(self, rank: int) -> None:
        await self._running[rank].aclose()

    async def aclose(self) -> None:
        for rank in range(self._num_cores):
            await self.kill(rank)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[CoresSideBySide]:
    cores = CoresSideBySide(tmp_path, 2)
    yield cores
    await cores.aclose()


async def connect(cores: CoresSideBySide, **options) -> AsyncEngineClient:
    times = {"ping_interval_s": TICK_S, "silence_limit_s": 5.0, **options}
    return await AsyncEngineClient.connect(cores.address, options=LinkOptions(**times))


async def test_requests_are_divided_and_each_is_answered(pair: CoresSideBySide):
    first, second = await pair.start(0), await pair.start(1)
    async with await connect(pair) as client:
        streams = [client.generate([1], SamplingParams(max_tokens=3)) for _ in range(8)]
        for stream in streams:
            assert await collect(stream) == {0: [10, 11, 12]}
        assert (len(added(first)), len(added(second))) == (4, 4)
        assert client.num_live_requests == 0


@pytest.mark.parametrize("victim", [0, 1])
async def test_requests_of_a_dead_core_go_on_in_the_other_at_once(pair: CoresSideBySide, victim: int):
    cores = [await pair.start(rank, num_steps=3) for rank in range(2)]
    async with await connect(pair) as client:
        streams = [client.generate([1], SamplingParams(max_tokens=9, n=2)) for _ in range(6)]
        await until(lambda: all(core.num_steps_left == 0 for core in cores))
        await asyncio.gather(*(stream.accepted() for stream in streams))
        await pair.kill(victim)
        survivor = cores[1 - victim]
        await survivor.next(AddRequest, count=6)
        survivor.allow_steps(None)
        for stream in streams:
            assert await collect(stream) == {0: [*range(10, 19)], 1: [*range(11, 20)]}
        moved = added(survivor)[3:]
        assert [request.request_id for request in moved] == sorted(request.request_id for request in moved)
        assert all(request.is_readded and request.num_deaths in (0, 1) for request in moved)
        late = client.generate([1], SamplingParams(max_tokens=2))
        assert await collect(late) == {0: [10, 11]}, "new requests avoid the dead core"


async def test_core_that_is_back_gets_requests_again_and_none_twice(pair: CoresSideBySide):
    await pair.start(0)
    await pair.start(1)
    async with await connect(pair) as client:
        await pair.kill(0)
        await until(lambda: not client._fleet.sessions[0].is_serving)
        back = await pair.start(0)
        await until(lambda: client._fleet.sessions[0].is_serving)
        for _ in range(4):
            assert await collect(client.generate([1], SamplingParams(max_tokens=2))) == {0: [10, 11]}
        assert len(added(back)) == 2
        assert client.num_core_restarts == 1


async def test_requests_wait_while_no_core_is_there_and_take_the_first_that_comes(pair: CoresSideBySide):
    for rank in range(2):
        await pair.start(rank, num_steps=0)
    async with await connect(pair) as client:
        streams = [client.generate([1], SamplingParams(max_tokens=3)) for _ in range(4)]
        await asyncio.gather(*(stream.accepted() for stream in streams))
        for rank in range(2):
            await pair.kill(rank)
        await until(lambda: not client.is_serving)
        streams.append(client.generate([1], SamplingParams(max_tokens=3)))
        core = await pair.start(1)
        for stream in streams:
            assert await collect(stream) == {0: [10, 11, 12]}
        assert len(added(core)) == 5


async def test_request_that_ends_cores_takes_no_third_one_with_it(tmp_path: Path):
    """It moves once; then it waits at its place, runs alone there, and fails, while the others' streams go on."""
    cores = CoresSideBySide(tmp_path, 3)
    async with asyncio.timeout(30):
        running = [await cores.start(rank, answers_itself=False) for rank in range(3)]
        async with await connect(cores) as client:
            poison = client.generate([1], SamplingParams(max_tokens=2))
            await running[0].next(AddRequest)
            await scheduled(running[0], 1)
            await cores.kill(0)
            await until(lambda: any(added(core) for core in running[1:]))
            [second] = [rank for rank in (1, 2) if added(running[rank])]
            assert added(running[second])[0].num_deaths == 1
            await scheduled(running[second], 1)
            for num_deaths in (2, 3, 4):
                core = await cores.start(second, answers_itself=False)
                await core.next(AddRequest)
                assert [request.num_deaths for request in added(core)] == [num_deaths]
                await scheduled(core, 1)
            await cores.start(second)
            with pytest.raises(PoisonRequest, match="5 times in a row, 3 of them while it ran alone"):
                await anext(poison)
            assert added(running[3 - second]) == [], "the third core never had it"
        await cores.aclose()


async def test_core_that_is_gone_for_good_leaves_its_requests_to_the_other(pair: CoresSideBySide):
    leaving = await pair.start(0, num_steps=1)
    staying = await pair.start(1, num_steps=1)
    async with await connect(pair) as client:
        streams = [client.generate([1], SamplingParams(max_tokens=4)) for _ in range(2)]
        await asyncio.gather(*(stream.accepted() for stream in streams))
        await leaving.send(BYE)
        await staying.next(AddRequest, count=2)
        staying.allow_steps(None)
        for stream in streams:
            assert await collect(stream) == {0: [10, 11, 12, 13]}
        assert client.death is None
        assert client.is_serving
        await staying.send(BYE)
        await client.wait_dead()
        with pytest.raises(EngineDead, match="in order"):
            client.generate([1], SamplingParams())


async def test_aborts_and_closed_streams_reach_the_core_that_has_the_request_now(pair: CoresSideBySide):
    await pair.start(0, num_steps=1)
    core = await pair.start(1, num_steps=1)
    async with await connect(pair) as client:
        streams = [client.generate([1], SamplingParams(max_tokens=9)) for _ in range(2)]
        await asyncio.gather(*(anext(stream) for stream in streams))
        await pair.kill(0)
        await core.next(AddRequest, count=2)
        await until(lambda: len(core.running) == 2)
        streams[0].close()
        client.abort([streams[1].request.request_id])
        await until(lambda: not core.running and client.num_live_requests == 0)


async def test_prefix_that_a_core_has_cached_draws_requests_there(pair: CoresSideBySide):
    cores = [await pair.start(rank) for rank in range(2)]
    prompt = list(range(3, 100))
    digests: list = []
    extend_digests(digests, prompt, 16, (("salt", "s"),), 6)
    async with await connect(pair) as client:
        for core in cores:
            await core.next(WatchPrefixCache)
        await cores[1].send(PrefixCacheChanges(stored=[block_key(digest) for digest in digests], is_snapshot=True))
        await client.call_utility("drain")  # what was sent before is taken in
        for _ in range(3):
            await collect(client.generate(prompt, SamplingParams(max_tokens=1), cache_salt="s"))
        assert (len(added(cores[0])), len(added(cores[1]))) == (0, 3)
        await collect(client.generate(prompt, SamplingParams(max_tokens=1), cache_salt="other"))
        assert len(added(cores[0])) == 1, "another salt shares no block"


async def test_single_core_is_asked_for_no_events(tmp_path: Path):
    async with FakeCore() as core, await AsyncEngineClient.connect(core.address) as client:
        await client.call_utility("drain")
        assert not any(isinstance(message, WatchPrefixCache) for message in core.received)


async def test_utilities_ask_every_core_and_add_up(pair: CoresSideBySide):
    cores = [await pair.start(rank, num_steps=0) for rank in range(2)]
    async with await connect(pair) as client:
        streams = [client.generate([1], SamplingParams()) for _ in range(3)]
        await asyncio.gather(*(stream.accepted() for stream in streams))
        assert await client.call_utility("drain") == 3
        for core in cores:
            assert any(isinstance(message, CallUtility) for message in core.received)


async def test_stats_are_those_of_all_cores(pair: CoresSideBySide):
    cores = [await pair.start(rank) for rank in range(2)]
    async with await connect(pair) as client:
        seen: list[StepStats] = []
        by_core: list[tuple[int, int]] = []
        client.add_stats_listener(seen.append)
        client.add_core_listener(lambda index, key, stats: by_core.append((index, stats.num_running)))
        for rank, core in enumerate(cores):
            await core.send(StepOutputs(stats=StepStats(num_running=rank + 1)))
        await until(lambda: len(by_core) == 2)
        assert client.stats == StepStats(num_running=3) == seen[-1]
        assert sorted(by_core) == [(0, 1), (1, 2)]


async def test_answer_ends_where_the_smallest_context_does(pair: CoresSideBySide):
    await pair.start(0, max_model_len=20)
    await pair.start(1, max_model_len=40)
    async with await connect(pair) as client:
        assert client.info.max_model_len == 20
        for _ in range(2):
            assert len((await collect(client.generate([1] * 4, SamplingParams(ignore_eos=True))))[0]) == 16


async def test_client_of_another_core_of_the_engine_has_that_core_alone(pair: CoresSideBySide):
    for rank in range(2):
        await pair.start(rank)
    async with await AsyncEngineClient.connect(core_address(pair.address, 1)) as client:
        assert client.cores == (("1", 1),)


async def test_engine_without_its_second_core_is_not_attached_to(pair: CoresSideBySide):
    await pair.start(0)
    with pytest.raises(EngineDead, match=r"core\.sock\.1 within"):
        await AsyncEngineClient.connect(pair.address, timeout_s=0.2)


async def test_each_core_answers_for_itself_and_one_that_is_gone_for_nobody(pair: CoresSideBySide):
    for rank in range(2):
        core = await pair.start(rank)
        core.answers["view"] = {"rank": rank}
    async with await connect(pair) as client:
        assert await client.call_each("view", timeout_s=5) == [{"rank": 0}, {"rank": 1}]
        await pair.kill(0)
        await until(lambda: not client._fleet.sessions[0].link.is_attached)
        assert await client.call_each("view", timeout_s=5) == [None, {"rank": 1}]
