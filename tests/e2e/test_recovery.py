"""Processes are killed and stopped under streams: clients see a pause, then exactly the tokens they would have seen."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pagewire.frontend.client.sync_client import EngineClient
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.children import is_alive, wait_until
from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint
from tests.support.token_streams import TokenStream, eventually, read_alone, read_disturbed
from tools.processes import Process, processes_below, read_process

pytestmark = pytest.mark.slow

CORE = "pagewire.engine_core"
EXECUTOR = "pagewire.gpu_executor"
STALL_LIMIT_S = 2.0

# Steps of 16 tokens: a long prompt takes many of them, so that a process can be killed amid one.
FLAGS = ["--stall-limit", str(STALL_LIMIT_S), "--max-num-batched-tokens", "16"]

# Greedy and seeded, one child and three, with logprobs, and a long prompt.
BODIES: list[dict[str, Any]] = [
    {"prompt": [11, 12, 13], "max_tokens": 400, "temperature": 0, "logprobs": 1},
    {"prompt": [21, 22], "max_tokens": 400, "temperature": 1, "seed": 5, "logprobs": 1},
    {"prompt": [31, 32, 33, 34], "max_tokens": 200, "temperature": 1, "seed": 6, "n": 3},
    {"prompt": [41 + index % 300 for index in range(600)], "max_tokens": 60, "temperature": 1, "seed": 7},
]


def long_checkpoint() -> str:
    """A tiny model whose context is long enough for streams that last."""
    return str(tiny_checkpoint("llama", max_position=2048))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server"), long_checkpoint(), *FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def expected(server: RunningServer) -> list[object]:
    return asyncio.run(read_alone(server.url, BODIES))


def find(server: RunningServer, module: str) -> Process:
    (process,) = (process for process in processes_below(server.pid) if process.module == module)
    return process


def strike(server: RunningServer, module: str, number: signal.Signals) -> Process:
    process = find(server, module)
    os.kill(process.pid, number)
    return process


async def replaced(server: RunningServer, old: Process) -> None:
    """Wait until another process has an old one's place."""

    def is_replaced() -> bool:
        found = [process for process in processes_below(server.pid) if process.module == old.module]
        return not old.is_same_and_running and any(process.pid != old.pid for process in found)

    await eventually(is_replaced, 30, f"the replacement of {old.module}")


async def status(server: RunningServer, path: str) -> int:
    async with aiohttp.ClientSession(server.url) as session, session.get(path) as response:
        return response.status


async def health_becomes(server: RunningServer, wanted: int, timeout_s: float) -> None:
    """Poll /health: it tells what it finds when it is asked."""
    async with asyncio.timeout(timeout_s):
        while await status(server, "/health") != wanted:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


async def serves_again(server: RunningServer) -> None:
    """Wait until /health is 200; then nothing may be left of what was."""
    await health_becomes(server, 200, 60)
    assert [process.module for process in processes_below(server.pid) if process.module == CORE] == [CORE]
    assert [process.module for process in processes_below(server.pid) if process.module == EXECUTOR] == [EXECUTOR]


def num_restarts(server: RunningServer, process: str) -> float:
    return server.gauge("pagewire_restarts_total", process=process)


def all_have_tokens(streams: list[TokenStream]) -> bool:
    return all(stream.num_tokens > 3 for stream in streams[:3])


def prompt_is_under_way(streams: list[TokenStream]) -> bool:
    return streams[3].is_accepted and all_have_tokens(streams) and not streams[3].num_tokens


async def kill_executor(server: RunningServer) -> None:
    strike(server, EXECUTOR, signal.SIGKILL)


async def kill_core(server: RunningServer) -> None:
    strike(server, CORE, signal.SIGKILL)


async def kill_both(server: RunningServer) -> None:
    core, executor = find(server, CORE), find(server, EXECUTOR)
    os.kill(executor.pid, signal.SIGKILL)
    os.kill(core.pid, signal.SIGKILL)


async def kill_executor_while_it_loads(server: RunningServer) -> None:
    await replaced(server, strike(server, EXECUTOR, signal.SIGKILL))
    strike(server, EXECUTOR, signal.SIGKILL)


async def kill_core_while_its_executor_loads(server: RunningServer) -> None:
    await replaced(server, strike(server, EXECUTOR, signal.SIGKILL))
    strike(server, CORE, signal.SIGKILL)


async def kill_core_while_it_starts(server: RunningServer) -> None:
    await replaced(server, strike(server, CORE, signal.SIGKILL))
    strike(server, CORE, signal.SIGKILL)


async def stop_executor(server: RunningServer) -> None:
    strike(server, EXECUTOR, signal.SIGSTOP)


async def stop_core(server: RunningServer) -> None:
    strike(server, CORE, signal.SIGSTOP)


DISTURBANCES = [
    kill_executor, kill_core, kill_both, stop_executor, stop_core, kill_executor_while_it_loads,
    kill_core_while_its_executor_loads, kill_core_while_it_starts,
]  # fmt: skip


@pytest.mark.parametrize("disturb", DISTURBANCES, ids=lambda disturb: disturb.__name__)
@pytest.mark.parametrize("when", [all_have_tokens, prompt_is_under_way], ids=["decode", "prefill"])
async def test_streams_go_on_with_the_same_tokens(
    server: RunningServer,
    expected: list[object],
    disturb: Callable[[RunningServer], Awaitable[None]],
    when: Callable[[list[TokenStream]], bool],
) -> None:
    if when is prompt_is_under_way and disturb not in (kill_executor, kill_core, stop_executor):
        pytest.skip("which process comes back is no matter of prompts")
    before = {name: num_restarts(server, name) for name in ("core", "executor")}
    struck = find(server, EXECUTOR)
    streams = await read_disturbed(server.url, BODIES, when=when, disturb=lambda: disturb(server))
    assert [stream.error for stream in streams] == [None] * len(streams)
    assert [stream.answer for stream in streams] == expected
    await serves_again(server)
    assert not struck.is_same_and_running
    name = "core" if "core" in disturb.__name__ or disturb is kill_both else "executor"
    assert num_restarts(server, name) > before[name]
    for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        await eventually(lambda gauge=gauge: server.gauge(gauge) == 0, 10, f"{gauge} going to 0")


@pytest.mark.parametrize("module", [CORE, EXECUTOR])
async def test_health_is_503_within_a_second_of_a_death_and_live_stays_200(server: RunningServer, module: str) -> None:
    assert await status(server, "/health") == 200
    strike(server, module, signal.SIGKILL)
    await health_becomes(server, 503, 1)
    assert await status(server, "/live") == 200
    # A request of now waits for the engine: it is no error to come at the wrong moment.
    answer = await TokenStream({"prompt": [1], "max_tokens": 3, "temperature": 0}).read(server.url)
    assert answer.num_tokens == 3
    await serves_again(server)


async def test_stopped_core_that_has_nothing_to_do_is_found_and_replaced(server: RunningServer) -> None:
    core = strike(server, CORE, signal.SIGSTOP)
    await health_becomes(server, 503, 2)
    assert await status(server, "/live") == 200
    await serves_again(server)
    assert not core.is_same_and_running


async def test_requests_of_the_gap_are_answered_behind_those_before_it(server: RunningServer) -> None:
    async def ask_in_the_gap() -> None:
        strike(server, CORE, signal.SIGKILL)
        late = [TokenStream({"prompt": [9, index], "max_tokens": 5}).read(server.url) for index in range(8)]
        assert [stream.num_tokens for stream in await asyncio.gather(*late)] == [5] * 8

    streams = await read_disturbed(server.url, BODIES[:3], when=all_have_tokens, disturb=ask_in_the_gap)
    assert all(stream.error is None for stream in streams)


async def test_client_that_leaves_while_the_core_is_down_leaves_nothing(server: RunningServer) -> None:
    leaving = TokenStream({"prompt": [8, 8], "max_tokens": 1000})
    reading = asyncio.create_task(leaving.read(server.url))
    await eventually(lambda: leaving.num_tokens > 0, 20, "the first token")
    core = strike(server, CORE, signal.SIGKILL)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await replaced(server, core)
    await serves_again(server)
    await eventually(lambda: server.gauge("vllm:num_requests_running") == 0, 10, "nothing to run")
    assert server.gauge("vllm:kv_cache_usage_perc") == 0


@pytest.mark.parametrize("stopped", [None, CORE, EXECUTOR])
def test_killed_frontend_takes_all_processes_with_it(tmp_path: Path, stopped: str | None) -> None:
    server = RunningServer(["serve", "--host", "127.0.0.1", "--port", "0", long_checkpoint()], tmp_path)
    below = processes_below(server.pid)
    assert {CORE, EXECUTOR} <= {process.module for process in below}
    if stopped is not None:
        strike(server, stopped, signal.SIGSTOP)
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not any(process.is_same_and_running for process in below), 2, "the end of all processes")
    server.stop()


@asynccontextmanager
async def engine_with_frontend(directory: Path) -> AsyncIterator[tuple[RunningServer, RunningServer, str]]:
    """`pagewire engine`, a frontend attached to it, and the engine's address."""
    path = Path("/tmp") / f"pw-recovery-{os.getpid()}.sock"
    (directory / "engine").mkdir()
    (directory / "frontend").mkdir()
    engine = RunningServer(["engine", long_checkpoint(), "--listen", f"ipc://{path}", *FLAGS], directory / "engine")
    frontend = RunningServer(
        ["serve", "--engine", f"ipc://{path}", "--host", "127.0.0.1", "--port", "0"], directory / "frontend"
    )
    try:
        yield engine, frontend, f"ipc://{path}"
    finally:
        frontend.stop()
        assert engine.stop() == 0


async def test_clients_of_an_engine_outlive_its_core_and_each_other(tmp_path: Path) -> None:
    params = SamplingParams(temperature=1, seed=3, max_tokens=600, ignore_eos=True)
    async with engine_with_frontend(tmp_path) as (engine, frontend, address):

        def generate() -> list[int]:
            with EngineClient(address) as client:
                return [token for delta in client.generate([5, 6, 7], params) for token in delta.token_ids]

        alone = await asyncio.to_thread(generate)
        expected = await read_alone(frontend.url, BODIES[:2])
        others = asyncio.create_task(asyncio.to_thread(generate))
        streams = await read_disturbed(
            frontend.url, BODIES[:2], when=lambda s: all(x.num_tokens > 3 for x in s), disturb=lambda: kill_core(engine)
        )
        assert [stream.answer for stream in streams] == expected
        assert await others == alone

        # Now a client with live requests is gone without a word.
        lost = [
            asyncio.create_task(TokenStream({**body, "max_tokens": 1400}).read(frontend.url)) for body in BODIES[:2]
        ]
        with EngineClient(address) as watcher:
            await eventually(lambda: watcher.call_utility("stats")["num_running"] == 2, 20, "two running requests")
            others = asyncio.create_task(asyncio.to_thread(generate))
            os.kill(frontend.pid, signal.SIGKILL)
            await asyncio.gather(*lost, return_exceptions=True)
            assert await others == alone

            def is_idle() -> bool:
                pool, stats = watcher.call_utility("pool"), watcher.call_utility("stats")
                return (pool["num_used_blocks"], stats["num_running"], stats["num_waiting"]) == (0, 0, 0)

            await eventually(is_idle, 10, "the abort of the lost client's requests")
        assert is_alive(engine.pid)
        assert read_process(find(engine, CORE).pid) is not None
