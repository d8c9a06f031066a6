"""What handlers share."""

from __future__ import annotations

import pytest

from pagewire.frontend.openai.serving import is_safe_id
from pagewire.ipc.requests import AddRequest
from tests.support.http_server import running_server


@pytest.mark.parametrize("text", ["a", "A-1._:z", "x" * 128])
def test_plain_ids_are_safe(text):
    assert is_safe_id(text)


@pytest.mark.parametrize("text", ["", "x" * 129, "a b", "a\n", "a\r\nX: y", "ä", '"', "a/b", "\x00"])
def test_ids_that_could_break_logs_or_headers_are_not(text):
    assert not is_safe_id(text)


@pytest.mark.parametrize("prompt", ["x" * (16 * 256 + 1), [1] * 17, [[1], [1] * 17]], ids=["text", "ids", "batch"])
async def test_prompt_too_long_by_far_is_refused_before_it_is_tokenized(prompt, monkeypatch):
    async with running_server("x", info={"max_model_len": 16}) as server:
        monkeypatch.setattr(server.serving.tokenizer, "encode_async", None)
        status, answer = await server.post("/v1/completions", prompt=prompt)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert not any(isinstance(m, AddRequest) for m in server.core.received)


async def test_prompt_too_long_by_its_tokens_is_refused_by_its_head():
    async with running_server("x", info={"max_model_len": 16}) as server:
        prompt = "y" * 16 * 256  # it may fit, for all that is known of its characters
        status, answer = await server.post("/v1/completions", prompt=prompt)
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "context_length_exceeded", "prompt")
        assert "has 128 tokens and more in its 4096 characters" in answer["error"]["message"]
        status, answer = await server.post("/tokenize", prompt=prompt)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
