"""A client's link to its cores: which silence is a death, who counts as the next core, and when it is over."""

from __future__ import annotations

import asyncio

import pytest

from pagewire.ipc.errors import ClientGivenUp, EngineDead, ErrorInfo
from pagewire.ipc.outputs import Goodbye, StepOutputs, StepStats
from pagewire.ipc.requests import AddRequest, Hello
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.fake_core import engine_info, until
from tests.support.successive_cores import Cores, added, collect, connect, lost


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
        client._fleet.sessions[0].link._heard_at -= 1
        assert await client.probe(5)
        assert core.num_pings > 0
        core.is_stopped = True
        client._fleet.sessions[0].link._heard_at -= 1
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
