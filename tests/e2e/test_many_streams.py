"""Three hundred concurrent streams finish with the right usage and leave nothing behind; so do clients that go away."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.support.children import wait_until
from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

NUM_STREAMS = 300


def assert_idle(server: RunningServer) -> None:
    """Nothing runs, nothing waits, no block is used."""
    for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        wait_until(lambda gauge=gauge: server.gauge(gauge) == 0, 20, f"{gauge} going to 0")


async def stream(session: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Read one stream to its end; return its token ids and usage."""
    token_ids: list[int] = []
    usage: dict[str, Any] = {}
    last = ""
    async with session.post("/v1/completions", json=body) as response:
        assert response.status == 200
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            last = line[6:].decode().strip()
            if last == "[DONE]":
                continue
            chunk = json.loads(last)
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                token_ids.extend(choice.get("token_ids") or [])
            usage = chunk.get("usage") or usage
    assert last == "[DONE]"
    return token_ids, usage


async def test_300_concurrent_streams_finish_with_the_right_usage(tiny: RunningServer) -> None:
    rng = random.Random(7)
    bodies = [
        {
            "prompt": [rng.randrange(3, 400) for _ in range(rng.randrange(1, 60))],
            "max_tokens": rng.randrange(1, 24),
            "temperature": rng.choice([0, 1]),
            "seed": index,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        for index in range(NUM_STREAMS)
    ]
    timeout = aiohttp.ClientTimeout(total=300)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(tiny.url, timeout=timeout, connector=connector) as session:
        results = await asyncio.gather(*(stream(session, body) for body in bodies))
        for body, (token_ids, usage) in zip(bodies, results, strict=True):
            assert len(token_ids) == body["max_tokens"]
            assert usage["prompt_tokens"] == len(body["prompt"])  # type: ignore[arg-type]
            assert usage["completion_tokens"] == body["max_tokens"]
        for index in rng.sample(range(NUM_STREAMS), 5):
            assert (await stream(session, bodies[index]))[0] == results[index][0], "alone as in the crowd"
    assert_idle(tiny)


def send(server: RunningServer, body: dict[str, Any]) -> socket.socket:
    """Send a request on a raw socket, and leave the answer unread."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    payload = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
    return connection


def reset(connection: socket.socket) -> None:
    """Close with a RST, as a vanished peer does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Few requests at once, each of up to 2,000 steps: what a test waits for lasts longer than its next look."""
    checkpoint = str(tiny_checkpoint("llama", max_position=2048))
    with running_server(tmp_path_factory.mktemp("narrow"), checkpoint, "--max-num-seqs", "4") as server:
        yield server


MAX_TOKENS = 2000
BODY = {"prompt": [7, 8, 9], "max_tokens": MAX_TOKENS, "ignore_eos": True}


@pytest.mark.parametrize("is_streaming", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_client_that_goes_away_while_decoding_is_aborted(narrow: RunningServer, is_streaming: bool, n: int) -> None:
    before = narrow.gauge("vllm:generation_tokens_total")
    connection = send(narrow, {**BODY, "stream": is_streaming, "n": n})
    wait_until(lambda: narrow.gauge("vllm:num_requests_running") > 0, 20, "the request running")
    reset(connection)
    assert_idle(narrow)
    assert narrow.gauge("vllm:generation_tokens_total") - before < MAX_TOKENS * n, "it was not run to its end"


def test_clients_that_go_away_while_queued_are_aborted(narrow: RunningServer) -> None:
    before = narrow.gauge("vllm:generation_tokens_total")
    connections = [send(narrow, {**BODY, "stream": True}) for _ in range(64)]
    try:
        wait_until(lambda: narrow.gauge("vllm:num_requests_waiting") > 0, 20, "requests waiting")
    finally:
        for connection in connections:
            reset(connection)
    assert_idle(narrow)
    assert narrow.gauge("vllm:generation_tokens_total") - before < MAX_TOKENS * 64, "they were not run to their ends"
