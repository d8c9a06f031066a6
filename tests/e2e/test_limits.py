"""A real engine's limits as its clients see them: time that is over, a queue that is full, and nobody else hurt."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.children import wait_until
from tests.support.http_server import parse_events
from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

LONG: dict[str, Any] = {"prompt": [21, 22, 23], "max_tokens": 2000, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A tiny model that runs one request at a time, and lets two wait."""
    with running_server(
        tmp_path_factory.mktemp("limits"),
        str(tiny_checkpoint("llama", max_position=2048)),
        *("--served-model-name", "tiny", "--max-num-seqs", "1", "--max-waiting-requests", "2"),
        *("--request-timeout", "60"),
    ) as running:
        yield running


def post(server: RunningServer, **body: Any) -> tuple[int, dict[str, str], str]:
    """Complete; return the status, the headers and the text of the answer."""
    request = urllib.request.Request(
        server.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, dict(response.headers), response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read().decode()


def blocks_are_free(server: RunningServer) -> bool:
    return server.gauge("vllm:kv_cache_usage_perc") == 0 and server.gauge("vllm:num_requests_running") == 0


def test_late_request_is_a_504_and_leaves_nothing_behind(server: RunningServer) -> None:
    status, headers, text = post(server, **LONG, timeout=0.2)
    assert (status, json.loads(text)["error"]["code"]) == (504, "deadline_exceeded")
    assert headers["x-should-retry"] == "false"
    wait_until(lambda: blocks_are_free(server), 5, "the blocks of a late request")


def test_late_stream_ends_with_its_error_and_done(server: RunningServer) -> None:
    status, _, text = post(server, **LONG, timeout=0.3, stream=True)
    *chunks, last, done = parse_events(text)
    assert (status, last["error"]["code"], done) == (200, "deadline_exceeded", "[DONE]")
    assert chunks
    wait_until(lambda: blocks_are_free(server), 5, "the blocks of a late request")


def test_request_that_waits_too_long_is_a_504_though_it_is_a_stream(server: RunningServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(post, server, **LONG, timeout=3)
        wait_until(lambda: server.gauge("vllm:num_requests_running") == 1, 10, "the request ahead")
        status, _, text = post(server, **LONG, timeout=0.2, stream=True)
        assert (status, json.loads(text)["error"]["code"]) == (504, "deadline_exceeded")
        assert running.result()[0] in (200, 504)


def test_full_queue_refuses_with_a_time_and_finishes_what_it_took(server: RunningServer) -> None:
    short = {**LONG, "max_tokens": 200}
    expected = post(server, **short)[2]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: post(server, **short), range(12)))
    by_status = {status: [text for code, _, text in answers if code == status] for status, _, _ in answers}
    assert set(by_status) == {200, 503}
    for text in by_status[200]:
        assert json.loads(text)["choices"] == json.loads(expected)["choices"]
    for status, headers, text in answers:
        if status == 503:
            assert json.loads(text)["error"]["code"] == "overloaded"
            assert 1 <= int(headers["Retry-After"]) <= 60
    assert post(server, **short)[0] == 200
