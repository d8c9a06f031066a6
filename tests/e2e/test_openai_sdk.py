"""The official `openai` SDK against the real server and the packaged model."""

from __future__ import annotations

import math

import openai
import pytest

from tests.support.running_server import RunningServer

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer briefly."}]


@pytest.fixture(scope="module")
def client(smollm2: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0, timeout=120)


def test_models_lists_the_packaged_model(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "SmolLM2-135M-Instruct"
    assert client.models.retrieve(model.id).id == model.id


def test_chat_answers_paris(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="SmolLM2-135M-Instruct", messages=QUESTION, temperature=0)
    choice = answer.choices[0]
    assert "Paris" in (choice.message.content or "")
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_chat_is_the_same_text_with_usage_at_the_end(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="SmolLM2-135M-Instruct", messages=QUESTION, temperature=0)
    chunks = list(
        client.chat.completions.create(
            model="SmolLM2-135M-Instruct",
            messages=QUESTION,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert whole.usage is not None
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completion_with_n_stop_and_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="SmolLM2-135M-Instruct",
        prompt="Count: one, two, three,",
        max_tokens=12,
        temperature=1,
        seed=5,
        n=3,
        logprobs=2,
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert "".join(choice.logprobs.tokens or []).startswith(choice.text[:1])
        assert all(
            value is None or (math.isfinite(value) and value <= 0) for value in choice.logprobs.token_logprobs or []
        )
    alone = client.completions.create(
        model="SmolLM2-135M-Instruct", prompt="Count: one, two, three,", max_tokens=12, temperature=1, seed=5
    )
    assert alone.choices[0].text == answer.choices[0].text
    stopped = client.completions.create(
        model="SmolLM2-135M-Instruct", prompt="Count: one, two, three,", max_tokens=20, temperature=0, stop=["five"]
    )
    assert stopped.choices[0].finish_reason == "stop"
    assert "five" not in stopped.choices[0].text


def test_chat_logprobs_carry_exact_bytes(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="SmolLM2-135M-Instruct", messages=QUESTION, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    content = logprobs.content or []
    spelled = b"".join(bytes(entry.bytes or []) for entry in content)
    assert (answer.choices[0].message.content or "").encode() in spelled
    for entry in content:
        assert entry.top_logprobs[0].logprob == max(top.logprob for top in entry.top_logprobs)
        assert entry.logprob == entry.top_logprobs[0].logprob, "a greedy token is the most likely one"


def test_errors_are_the_sdks_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="gpt-9", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="SmolLM2-135M-Instruct", messages=QUESTION, temperature=9)
    with pytest.raises(openai.BadRequestError, match="2048") as refused:
        client.completions.create(model="SmolLM2-135M-Instruct", prompt="word " * 3000)
    assert refused.value.code == "context_length_exceeded"
