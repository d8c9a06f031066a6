"""Two cores behind two frontends on one port: any of them may be killed, and only its own connections break."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint
from tests.support.token_streams import TokenStream, eventually, read_alone, read_disturbed
from tools.processes import Process, processes_below

pytestmark = pytest.mark.slow

CORE = "pagewire.engine_core"
FRONTEND = "pagewire.frontend.supervisor.frontend_process"
# So many that the kernel gives some to each frontend.
NUM_STREAMS = 24
BODIES: list[dict[str, Any]] = [
    {"prompt": [11 + index, 12, 13], "max_tokens": 300, "temperature": 1, "seed": index, "logprobs": 1}
    for index in range(NUM_STREAMS)
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    model = str(tiny_checkpoint("llama", max_position=2048))
    flags = ["--data-parallel-size", "2", "--api-server-count", "2"]
    with running_server(tmp_path_factory.mktemp("server"), model, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def expected(server: RunningServer) -> list[object]:
    return asyncio.run(read_alone(server.url, BODIES))


def find(server: RunningServer, module: str) -> list[Process]:
    return sorted(process for process in processes_below(server.pid) if process.module == module)


def all_have_tokens(streams: list[TokenStream]) -> bool:
    return all(stream.num_tokens > 5 for stream in streams)


async def replaced(server: RunningServer, victim: Process) -> None:
    def are_two_again() -> bool:
        found = find(server, victim.module)
        return len(found) == 2 and victim not in found

    await eventually(are_two_again, 30, f"the replacement of {victim.module}")


async def test_streams_of_a_killed_core_go_on_in_the_other(server: RunningServer, expected: list[object]):
    victim = find(server, CORE)[0]

    async def kill() -> None:
        os.kill(victim.pid, signal.SIGKILL)

    streams = await read_disturbed(server.url, BODIES, when=all_have_tokens, disturb=kill)
    assert [stream.answer for stream in streams] == expected
    await replaced(server, victim)


async def test_streams_of_the_other_frontend_go_on_when_one_is_killed(server: RunningServer, expected: list[object]):
    victim = find(server, FRONTEND)[0]
    streams = [TokenStream(body) for body in BODIES]
    reading = [asyncio.create_task(stream.read(server.url)) for stream in streams]
    await eventually(lambda: all_have_tokens(streams), 60, "the first tokens")
    os.kill(victim.pid, signal.SIGKILL)
    results = await asyncio.gather(*reading, return_exceptions=True)
    broken = [isinstance(result, aiohttp.ClientError) for result in results]
    assert 0 < sum(broken) < NUM_STREAMS
    for stream, is_broken, answer in zip(streams, broken, expected, strict=True):
        assert is_broken or stream.answer == answer
    await replaced(server, victim)


async def test_both_frontends_answer_after_all_that(server: RunningServer, expected: list[object]):
    async def answers() -> list[object]:
        return [
            stream.answer for stream in await asyncio.gather(*(TokenStream(body).read(server.url) for body in BODIES))
        ]

    assert await answers() == expected
    assert server.gauge("vllm:num_requests_running") == 0
