"""A server sleeps amid streams, and its core is killed meanwhile: they go on with the tokens that were theirs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import aiohttp
import pytest

from tests.support.children import wait_until
from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint
from tests.support.token_streams import eventually, read_alone, read_disturbed
from tools.processes import processes_below

pytestmark = pytest.mark.slow

CORE, EXECUTOR = "pagewire.engine_core", "pagewire.gpu_executor"
BODIES = [
    {"prompt": [11, 12, 13], "max_tokens": 400, "temperature": 0, "logprobs": 1},
    {"prompt": [31, 32, 33, 34], "max_tokens": 200, "temperature": 1, "seed": 6, "n": 3},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    checkpoint = str(tiny_checkpoint("llama", max_position=2048))
    with running_server(tmp_path_factory.mktemp("server"), checkpoint, "--enable-admin") as server:
        yield server


def executors(server: RunningServer) -> list[int]:
    return [process.pid for process in processes_below(server.pid) if process.module == EXECUTOR]


async def post(server: RunningServer, path: str) -> object:
    async with aiohttp.ClientSession() as session, session.post(server.url + path) as response:
        assert response.status == 200, await response.text()
        return await response.json()


@pytest.mark.parametrize("kills_core", [False, True])
def test_streams_go_on_after_a_sleep(server: RunningServer, kills_core: bool):
    expected = asyncio.run(read_alone(server.url, BODIES))

    async def sleep_a_while() -> None:
        assert await post(server, "/sleep?level=2&mode=keep") == {"status": "sleeping", "level": 2}
        assert executors(server) == []
        assert server.gauge("vllm:engine_sleep_state", sleep_state="discard_all") == 1
        if kills_core:
            core = server.process_of(CORE)
            os.kill(core, signal.SIGKILL)
            ends = server.log.count("the executors end, as the engine sleeps")
            await eventually(
                lambda: server.log.count("the executors end, as the engine sleeps") > ends, 60, "the next core's sleep"
            )
            await eventually(lambda: executors(server) == [], 10, "its executors' end")
        assert server.get("/is_sleeping") == {"is_sleeping": True}
        assert (await post(server, "/wake_up")) == {"status": "awake", "tags": None}

    async def run() -> None:
        streams = await read_disturbed(
            server.url,
            BODIES,
            when=lambda streams: all(stream.num_tokens > 3 for stream in streams),
            disturb=sleep_a_while,
        )
        assert [stream.answer for stream in streams] == expected

    asyncio.run(run())
    wait_until(lambda: len(executors(server)) == 1, 10, "one executor")
    assert server.get("/is_paused") == {"is_paused": False}
