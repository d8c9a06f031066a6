"""The shapes of `vllm bench serve --backend openai` and `openai-chat`: what it sends, and what it reads of a stream.

Source: vLLM 0.32, vllm/benchmarks/lib/endpoint_request_func.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.http_server import Running, running_server

HEADERS = {"Content-Type": "application/json", "x-request-id": "bench-0af1-0"}
SAMPLING = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "frequency_penalty": 0.0,
            "presence_penalty": 0.0}  # fmt: skip
CASES = {
    "/v1/completions": {"prompt": "a prompt", "repetition_penalty": 1.0, "max_tokens": 4, "logprobs": None},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a prompt"}]}],
        "max_completion_tokens": 4,
    },
}


async def measure(server: Running, path: str, **extra: Any) -> tuple[list[str], dict[str, int]]:
    """Send what the client sends, and return (the texts that it times, the usage that it counts by), read its way."""
    body = {
        "model": "fake", **CASES[path], "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
        **SAMPLING, **extra,
    }  # fmt: skip
    texts: list[str] = []
    usage: dict[str, int] = {}
    async with server.http.post(path, json=body, headers=HEADERS) as response:
        assert response.status == 200, await response.text()
        for block in (await response.text()).split("\n\n"):
            event = block.strip().removeprefix("data: ")
            if not event or event.startswith(":") or event == "[DONE]":
                continue
            data = json.loads(event)
            if choices := data.get("choices"):
                choice = choices[0]
                texts.append(choice["text"] if path == "/v1/completions" else choice["delta"].get("content") or "")
            elif found := data.get("usage"):
                usage = found
    return texts, usage


@pytest.mark.parametrize("path", CASES)
@pytest.mark.parametrize("extra", [{}, {"logprobs": None}, {"repetition_penalty": 1.05}, {"seed": 7}])
async def test_the_client_reads_its_tokens_and_counts(path: str, extra: dict[str, Any]):
    async with running_server("abcd") as server:
        texts, usage = await measure(server, path, **extra)
    assert "".join(texts) == "abcd"
    assert usage["completion_tokens"] == 4
    assert usage["prompt_tokens"] > 0


async def test_logprobs_may_come_along():
    async with running_server("abcd") as server:
        texts, _ = await measure(server, "/v1/completions", logprobs=1)
    assert "".join(texts) == "abcd"


async def test_the_client_finds_the_name_of_the_model():
    async with running_server("a") as server, server.http.get("/v1/models") as response:
        assert (await response.json())["data"][0]["id"] == "fake"
