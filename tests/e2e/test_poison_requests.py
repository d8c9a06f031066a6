"""Requests that end a process whenever they run: they fail alone; and deaths that nothing can mend end the server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support import faulty_core, poisoned_executor
from tests.support.children import ROOT, is_alive, wait_until
from tests.support.running_server import RunningServer
from tests.support.tiny_model import tiny_checkpoint
from tests.support.token_streams import TokenStream, eventually, read_alone

pytestmark = pytest.mark.slow

INNOCENT: list[dict[str, Any]] = [
    {"prompt": [10 + index, 20], "max_tokens": 60, "temperature": float(index % 2), "seed": index} for index in range(4)
]


def faulty_server(directory: Path, *flags: str, **environment: str) -> RunningServer:
    """A server whose processes have planted faults."""
    arguments = ["serve", str(tiny_checkpoint("llama", max_position=2048)), "--host", "127.0.0.1", "--port", "0"]
    return RunningServer(
        [*arguments, *flags],
        directory,
        module="tests.support.faulty_pagewire",
        environment={"PYTHONPATH": str(ROOT), **environment},
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    server = faulty_server(tmp_path_factory.mktemp("faulty"), "--stall-limit", "2")
    yield server
    assert server.stop() == 0


async def post(server: RunningServer, body: dict[str, Any]) -> tuple[int, Any]:
    """Return the status and the document of an answer that is not streamed."""
    async with (
        asyncio.timeout(120),
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/v1/completions", json=body) as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize(
    "first_token",
    [
        pytest.param(poisoned_executor.KILLER, id="kills the executor"),
        pytest.param(poisoned_executor.RAISER, id="makes the executor raise"),
        pytest.param(poisoned_executor.HANGER, id="hangs the executor"),
        pytest.param(faulty_core.KILLER, id="kills the core"),
        pytest.param(faulty_core.RAISER, id="makes the core raise"),
    ],
)
async def test_poison_request_fails_with_500_and_all_others_finish(server: RunningServer, first_token: int) -> None:
    expected = await read_alone(server.url, INNOCENT)
    poison = asyncio.create_task(post(server, {"prompt": [first_token, 7], "max_tokens": 5}))
    streams = [TokenStream(body) for body in INNOCENT]
    await asyncio.gather(*(stream.read(server.url) for stream in streams))
    assert [stream.error for stream in streams] == [None] * len(streams)
    assert [stream.answer for stream in streams] == expected
    status, document = await poison
    assert status == 500
    assert "alone" in document["error"]["message"]
    assert "Traceback" not in document["error"]["message"]
    # The engine serves on as if nothing had been.
    assert await read_alone(server.url, INNOCENT[:1]) == expected[:1]


async def test_streamed_poison_request_ends_in_an_error_event(server: RunningServer) -> None:
    stream = TokenStream({"prompt": [poisoned_executor.KILLER], "max_tokens": 5})
    await stream.read(server.url)
    assert stream.is_done
    assert stream.error is not None
    assert stream.error["code"] == "poison_request"
    assert not stream.num_tokens


@pytest.mark.parametrize(
    ("variable", "cause"),
    [
        pytest.param(poisoned_executor.DIES_FROM_EPOCH, "the device is gone", id="executors"),
        pytest.param(faulty_core.DIES_FROM_EPOCH, "exit code 9", id="cores"),
    ],
)
async def test_starts_that_keep_failing_end_the_server_and_tell_every_request_why(
    tmp_path: Path, variable: str, cause: str
) -> None:
    server = faulty_server(tmp_path, **{variable: "2"})
    streams = [TokenStream({"prompt": [5, index], "max_tokens": 1800}) for index in range(3)]
    reading = [asyncio.create_task(stream.read(server.url)) for stream in streams]
    await eventually(lambda: all(stream.num_tokens for stream in streams), 30, "the first tokens")
    below = server.descendants()
    first_token = poisoned_executor.KILLER if variable == poisoned_executor.DIES_FROM_EPOCH else faulty_core.KILLER
    poison = asyncio.create_task(post(server, {"prompt": [first_token], "max_tokens": 5}))
    await asyncio.gather(*reading)
    for stream in streams:
        assert stream.error is not None
        assert cause in stream.error["message"]
    status, document = await poison
    assert status >= 500
    assert cause in document["error"]["message"]
    wait_until(lambda: server.exit_code is not None, 20, "the end of the server")
    assert server.exit_code not in (0, -signal.SIGKILL)
    assert not any(is_alive(pid) for pid in below)
    server.stop()


async def test_deaths_beyond_the_budget_end_the_server(tmp_path: Path) -> None:
    server = faulty_server(tmp_path, "--max-restarts", "1")
    status, document = await post(server, {"prompt": [poisoned_executor.KILLER], "max_tokens": 5})
    assert status >= 500
    assert "--max-restarts 1" in document["error"]["message"]
    wait_until(lambda: server.exit_code is not None, 20, "the end of the server")
    assert server.exit_code == 1
    server.stop()
