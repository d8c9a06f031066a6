"""A server whose KV pool holds one and a half requests: all that come at once get the answers that each gets alone."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("small")
    arguments = ["--max-model-len", "64", "--num-gpu-blocks-override", "6"]
    with running_server(directory, str(tiny_checkpoint()), *arguments) as server:
        yield server


def stream(server: RunningServer, body: dict[str, Any]) -> tuple[str, list[int]]:
    """Return text and token ids of a streamed completion."""
    request = urllib.request.Request(
        server.url + "/v1/completions",
        json.dumps({**body, "stream": True}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        *events, done, rest = response.read().split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    choices = [json.loads(event.removeprefix(b"data: "))["choices"][0] for event in events]
    ids = [token_id for choice in choices for token_id in choice.get("token_ids") or []]
    return "".join(choice["text"] for choice in choices), ids


def whole(server: RunningServer, body: dict[str, Any]) -> tuple[str, list[int]]:
    """Return text and token ids of a completion."""
    choice = server.post("/v1/completions", body)["choices"][0]
    return choice["text"], choice["token_ids"]


def test_preempted_answers_are_those_of_requests_alone_streamed_and_whole(small: RunningServer) -> None:
    shared = {"max_tokens": 40, "min_tokens": 40, "return_token_ids": True}
    bodies = [
        {**shared, "prompt": [5 + index + 3 * i for i in range(20)], **options}
        for index, options in enumerate(
            [
                {"temperature": 0},
                {"temperature": 0, "repetition_penalty": 1.3},
                {"temperature": 1, "seed": 7},
                {"temperature": 0, "frequency_penalty": 0.5},
            ]
        )
    ]
    alone = [whole(small, body) for body in bodies]
    assert all(len(token_ids) == 40 for _, token_ids in alone)
    assert small.gauge("vllm:num_preemptions_total") == 0
    with ThreadPoolExecutor(2 * len(bodies)) as pool:
        streams = [pool.submit(stream, small, body) for body in bodies]
        answers = [pool.submit(whole, small, body) for body in bodies]
        assert [future.result() for future in streams] == alone
        assert [future.result() for future in answers] == alone
    assert small.gauge("vllm:num_preemptions_total") > 0
    assert small.gauge("vllm:kv_cache_usage_perc") == 0


def test_request_that_fills_the_pool_does_not_block_the_one_behind_it(small: RunningServer) -> None:
    status, refused = small.post("/v1/completions", {"prompt": [7] * 100})
    assert (status, refused["error"]["code"]) == (400, "context_length_exceeded")
    longest = {"prompt": [8] * 40, "max_tokens": 200, "ignore_eos": True}
    assert small.post("/v1/completions", longest)["choices"][0]["finish_reason"] == "length"
    assert small.post("/v1/completions", {"prompt": [9], "max_tokens": 3})["usage"]["completion_tokens"] <= 3
