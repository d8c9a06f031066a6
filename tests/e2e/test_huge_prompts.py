"""While prompts of about the largest body arrive and are tokenized, /health answers at once, and others get theirs."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from pagewire.frontend.http.server import MAX_BODY_BYTES
from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

HEALTH_LIMIT_S = 1.0
# So long that a text of 2 MB may fit for all that is known before it is tokenized, and one of 8 MB by its length alone.
MAX_MODEL_LEN = 2**17
LARGEST = MAX_BODY_BYTES - 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    checkpoint = str(tiny_checkpoint("llama", max_position=MAX_MODEL_LEN))
    flags = ("--served-model-name", "tiny", "--max-num-seqs", "4", "--kv-cache-memory-bytes", "256M")
    with running_server(tmp_path_factory.mktemp("huge"), checkpoint, *flags) as running:
        yield running


@contextmanager
def watched_health(server: RunningServer) -> Iterator[list[float]]:
    """Ask /health again and again on a thread of its own; the list has the seconds of each answer."""
    seconds: list[float] = []
    is_over = threading.Event()

    def watch() -> None:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        while not is_over.wait(0.02):
            started = time.perf_counter()
            connection.request("GET", "/health")
            response = connection.getresponse()
            response.read()
            seconds.append(time.perf_counter() - started)
            assert response.status == 200
        connection.close()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seconds
    finally:
        is_over.set()
        thread.join()


def post(server: RunningServer, path: str, payload: bytes) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(server.url + path, payload, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param("/v1/completions", "word " * (LARGEST // 5), id="refused by its head"),
        pytest.param("/v1/completions", "a" * LARGEST, id="one word of 8 MB"),
        pytest.param("/v1/completions", "\\u00e9" * (LARGEST // 6), id="escapes"),
        pytest.param("/v1/completions", "word " * (2 * 2**20 // 5), id="tokenized as a whole"),
        pytest.param("/v1/chat/completions", "word " * (2 * 2**20 // 5), id="rendered and tokenized"),
        pytest.param("/tokenize", "a" * (2 * 2**20), id="counted"),
    ],
)
def test_health_answers_while_a_huge_prompt_is_dealt_with(server: RunningServer, path: str, text: str) -> None:
    key, value = (
        ("messages", f'[{{"role": "user", "content": "{text}"}}]') if "chat" in path else ("prompt", f'"{text}"')
    )
    payload = f'{{"model": "tiny", "{key}": {value}}}'.encode()
    assert len(payload) < MAX_BODY_BYTES
    beside = {"prompt": [21, 22, 23], "max_tokens": 50, "temperature": 0, "ignore_eos": True}
    alone = server.post("/v1/completions", beside)["choices"]
    with watched_health(server) as seconds, ThreadPoolExecutor(1) as pool:
        huge = pool.submit(post, server, path, payload)
        while not huge.done():
            assert server.post("/v1/completions", beside)["choices"] == alone
        status, answer = huge.result()
    if path == "/tokenize" and status == 200:
        assert answer["count"] == len(answer["tokens"])
    else:
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded"), answer
    assert len(seconds) > 3
    assert max(seconds) < HEALTH_LIMIT_S
