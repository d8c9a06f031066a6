"""Several cores' processes under one client: the others go on with what one leaves, until the last one has ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.frontend.supervisor.engine_process import EngineProcess, start_cores, stop_cores
from pagewire.frontend.supervisor.running_fleet import RunningFleet
from pagewire.ipc.config import EngineConfig, SupervisionConfig
from pagewire.ipc.endpoints import core_address
from pagewire.ipc.errors import MachineError
from pagewire.ipc.parallel_config import ParallelConfig
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.children import is_alive, make_importable
from tests.support.fake_core_process import FAULT

DEADLINE_S = 60


@asynccontextmanager
async def running(**supervision: int) -> AsyncIterator[tuple[list[EngineProcess], RunningFleet, AsyncEngineClient]]:
    config = EngineConfig(supervision=SupervisionConfig(**supervision), parallel=ParallelConfig(data_parallel_size=2))
    processes = start_cores(config, core_module="tests.support.fake_core_process")
    fleet = RunningFleet(processes)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield processes, fleet, await fleet.connect("test")
    finally:
        await fleet.aclose()
        stop_cores(processes)
        assert not any(is_alive(process.process.pid) for process in processes)


@pytest.fixture(autouse=True)
def _fake_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    make_importable(monkeypatch)


def kill(process: EngineProcess) -> None:
    os.kill(process.process.pid, signal.SIGKILL)


async def read(client: AsyncEngineClient, max_tokens: int) -> list[int]:
    return [
        token
        async for delta in client.generate([1], SamplingParams(max_tokens=max_tokens))
        for token in delta.token_ids
    ]


async def test_streams_of_a_killed_core_go_on_in_the_other_and_it_comes_back(caplog: pytest.LogCaptureFixture):
    async with running() as (processes, _, client):
        # Each core takes three steps in all: one token more can only come from another core.
        stream = client.generate([1], SamplingParams(max_tokens=5))
        tokens = list((await anext(stream)).token_ids)
        kill(processes[0])
        async for delta in stream:
            tokens += delta.token_ids
        assert tokens == [10, 11, 12, 13, 14]
        while client.cores[0][1] != 2:  # noqa: ASYNC110 - another process brings it about
            await asyncio.sleep(0.01)
        assert (client.num_core_restarts, processes[1].core_epoch) == (1, 1)
        assert "engine core 0 was killed by signal 9" in caplog.text
        assert "starting another, epoch 2" in caplog.text


@pytest.mark.slow
async def test_core_that_can_not_be_started_any_more_leaves_the_engine_to_the_other(monkeypatch: pytest.MonkeyPatch):
    async with running() as (processes, fleet, client):
        monkeypatch.setenv(FAULT, "fails_to_start")
        kill(processes[0])
        while not fleet.given_up:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        assert fleet.given_up == processes[:1]
        assert client.death is None
        assert await read(client, 2) == [10, 11]
        kill(processes[1])
        await client.wait_dead()
        assert client.death is not None
        assert "2 starts of the engine core in a row have failed" in client.death.message


async def test_engine_of_which_one_core_never_starts_does_not_start(monkeypatch: pytest.MonkeyPatch):
    config = EngineConfig(parallel=ParallelConfig(data_parallel_size=2))
    processes = start_cores(config, core_module="tests.support.fake_core_process")
    fleet = RunningFleet(processes)
    try:
        kill(processes[1])
        with pytest.raises(MachineError, match="before it was ready"):
            await asyncio.wait_for(fleet.connect("test"), DEADLINE_S)
    finally:
        await fleet.aclose()
        stop_cores(processes)


def test_each_core_knows_its_rank_and_listens_beside_the_first():
    config = EngineConfig(parallel=ParallelConfig(data_parallel_size=2))
    processes = start_cores(config, core_module="tests.support.idle_child")
    stop_cores(processes)
    assert processes[1].listen_address == core_address(processes[0].listen_address, 1)
    assert [process.config.parallel.data_parallel_rank for process in processes] == [0, 1]
    assert msgspec.structs.replace(processes[1].config.parallel, data_parallel_rank=0) == config.parallel
