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


def test_children_of_a_seed_differ_and_come_again(client: openai.OpenAI) -> None:
    fields = {"model": "SmolLM2-135M-Instruct", "prompt": "Once upon a time", "temperature": 1.0, "max_tokens": 20}
    first, second = (client.completions.create(**fields, n=3, seed=7) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert len(set(texts)) == 3
    assert texts == [choice.text for choice in second.choices]
    unseeded = {client.completions.create(**fields).choices[0].text for _ in range(3)}
    assert len(unseeded) > 1


def test_usage_counts_the_prompt_once_and_every_child(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="SmolLM2-135M-Instruct", prompt=[5, 6, 7, 8], n=2, max_tokens=8, temperature=1.0,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert answer.usage is not None
    counts = (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens)
    assert counts == (4, 16, 20)


def test_children_of_a_stream_end_one_by_one(client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="SmolLM2-135M-Instruct", prompt="A short word:", n=4, max_tokens=30, temperature=1.0, seed=3,
        stop=["\n", "."], stream=True,
    )  # fmt: skip
    texts, reasons = [""] * 4, [0] * 4
    for chunk in stream:
        for choice in chunk.choices:
            assert not reasons[choice.index], "nothing follows an end"
            texts[choice.index] += choice.text
            reasons[choice.index] += choice.finish_reason is not None
    assert reasons == [1] * 4
    assert len(set(map(len, texts))) > 1
