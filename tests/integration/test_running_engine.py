"""The supervisor of cores: processes that end, hang or never come up, and what the client's requests hear of it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pagewire.frontend.client.core_link import LinkOptions
from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.frontend.client.token_stream import TokenStream
from pagewire.frontend.supervisor import running_engine
from pagewire.frontend.supervisor.engine_process import EngineProcess
from pagewire.frontend.supervisor.farewell import say_farewell
from pagewire.frontend.supervisor.running_engine import RunningEngine
from pagewire.frontend.supervisor.running_fleet import RunningFleet
from pagewire.ipc.config import EngineConfig, SupervisionConfig
from pagewire.ipc.errors import EngineDead, MachineError
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.children import is_alive, make_importable
from tests.support.fake_core_process import FAULT

DEADLINE_S = 60


@asynccontextmanager
async def running(**supervision) -> AsyncIterator[tuple[EngineProcess, RunningEngine, AsyncEngineClient]]:
    config = EngineConfig(supervision=SupervisionConfig(**supervision))
    process = EngineProcess(config, core_module="tests.support.fake_core_process")
    fleet = RunningFleet([process])
    try:
        async with asyncio.timeout(DEADLINE_S):
            client = await fleet.connect("test")
            yield process, fleet._engines[0], client
    finally:
        await fleet.aclose()
        process.stop()


@pytest.fixture(autouse=True)
def _fake_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    make_importable(monkeypatch)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what other processes bring about."""
    while not holds():  # noqa: ASYNC110 - they send this one no event
        await asyncio.sleep(0.01)


async def tokens_of(client: AsyncEngineClient, max_tokens: int) -> list[int]:
    return await read_all(client.generate([1], SamplingParams(max_tokens=max_tokens)))


async def read_all(stream: TokenStream) -> list[int]:
    return [token async for delta in stream for token in delta.token_ids]


async def test_a_fork_that_ends_stops_no_engine_of_its_parent(monkeypatch: pytest.MonkeyPatch):
    async with running() as (process, _, client):
        pid = os.getpid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: pid + 1)  # as in a fork, whose copy of the engine is dropped
            process.ask_to_stop()
        stdin = process.process._process.stdin
        assert stdin is not None
        assert not stdin.closed
        assert len(await tokens_of(client, 2)) == 2


async def test_killed_core_is_started_again_and_its_requests_go_on():
    async with running() as (process, _, client):
        stream = client.generate([1], SamplingParams(max_tokens=8))
        tokens = []
        pids = {process.process.pid}
        async for delta in stream:
            tokens += delta.token_ids
            if len(tokens) in (3, 6):
                os.kill(process.process.pid, signal.SIGKILL)
                await until(lambda: process.process.pid not in pids)
                pids.add(process.process.pid)
        assert tokens == list(range(10, 18))
        assert (process.core_epoch, client.num_core_restarts) == (3, 2)
        assert sum(map(is_alive, pids)) == 1


async def test_idle_client_attaches_to_the_next_core():
    async with running() as (process, _, client):
        left_behind = Path(process.address.removeprefix("ipc://")).with_name("executor-1-1-0.sock")
        left_behind.touch()
        os.kill(process.process.pid, signal.SIGKILL)
        await until(lambda: client.core_epoch == 2)
        assert client.is_serving
        assert not left_behind.exists()
        assert await tokens_of(client, 3) == [10, 11, 12]


@pytest.mark.slow
async def test_core_that_hangs_is_killed_at_the_stall_limit_though_nobody_waits_for_it():
    async with running(stall_limit=1.0) as (process, _, client):
        os.kill(process.process.pid, signal.SIGSTOP)
        await until(lambda: client.core_epoch == 2)
        assert await tokens_of(client, 3) == [10, 11, 12]


async def test_core_that_always_ends_is_given_up_and_every_request_hears_why(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(FAULT, "ends_on_add")
    async with running(max_restarts=1) as (process, engine, client):
        streams = [client.generate([1], SamplingParams()) for _ in range(3)]
        for stream in streams:
            with pytest.raises(EngineDead, match=r"ended 2 times in a row.*--max-restarts 1.*exit code 70"):
                await anext(stream)
        assert process.core_epoch == 2
        assert engine.has_given_up


async def test_two_starts_that_fail_are_enough(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(FAULT, "fails_to_start")
    async with running() as (process, _, client):
        os.kill(process.process.pid, signal.SIGKILL)
        await client.wait_dead()
        assert "2 starts of the engine core in a row have failed" in client.death.message
        assert process.core_epoch == 3


async def test_progress_between_deaths_makes_the_count_begin_anew():
    async with running(max_restarts=1) as (process, _, client):
        for num_deaths in range(1, 5):
            os.kill(process.process.pid, signal.SIGKILL)
            await until(lambda epoch=num_deaths + 1: client.core_epoch == epoch)
            assert await tokens_of(client, 2) == [10, 11]
        assert client.death is None


async def test_steps_for_other_clients_are_progress_though_deaths_follow_soon():
    async with (
        running(max_restarts=1, stall_limit=60.0) as (process, engine, client),
        await AsyncEngineClient.connect(process.address, timeout_s=DEADLINE_S) as other,
    ):
        for num_deaths in range(1, 5):
            os.kill(process.process.pid, signal.SIGKILL)
            await until(lambda epoch=num_deaths + 1: client.core_epoch == other.core_epoch == epoch)
            assert await tokens_of(other, 2) == [10, 11]
            await until(lambda: not engine._budget.is_strained)
        assert client.death is None


@pytest.mark.slow
async def test_core_that_stops_before_it_was_ever_ready_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(FAULT, "hangs_at_start")
    monkeypatch.setattr(running_engine, "_FIRST_START_LIMIT_S", 1.0)
    with pytest.raises(MachineError, match="exit code -9 before it was ready"):
        async with running(stall_limit=1.0):
            pass


async def test_clients_of_an_engine_that_has_given_up_are_told_when_they_come_back(tmp_path: Path):
    address = f"ipc://{tmp_path}/core"
    config = EngineConfig()
    process = EngineProcess(config, address=address, core_module="tests.support.fake_core_process")
    try:
        options = LinkOptions(reconnect_limit_s=DEADLINE_S)
        async with (
            asyncio.timeout(DEADLINE_S),
            await AsyncEngineClient.connect(address, timeout_s=DEADLINE_S, options=options) as client,
        ):
            stream = client.generate([1], SamplingParams(max_tokens=9))
            await anext(stream)
            process.process.begin_kill()
            await until(lambda: not client.is_serving)
            saying = threading.Thread(target=say_farewell, args=(address, None, EngineDead("it died six times")))
            saying.start()
            with pytest.raises(EngineDead, match="six times"):
                await read_all(stream)
            await asyncio.to_thread(saying.join)
    finally:
        process.stop()
