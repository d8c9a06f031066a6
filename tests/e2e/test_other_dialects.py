"""The Responses and Messages APIs against the real server and the packaged model, by the SDKs that use them."""

from __future__ import annotations

import anthropic
import openai
import pytest

from tests.support.running_server import RunningServer

pytestmark = pytest.mark.slow

MODEL = "SmolLM2-135M-Instruct"
QUESTION = "What is the capital of France? Answer briefly."


@pytest.fixture(scope="module")
def responses(smollm2: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def messages(smollm2: RunningServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=smollm2.url, api_key="none", max_retries=0, timeout=120)


def test_all_dialects_give_the_chats_answer(responses: openai.OpenAI, messages: anthropic.Anthropic) -> None:
    asked = [{"role": "user", "content": QUESTION}]
    chat = responses.chat.completions.create(model=MODEL, messages=asked, temperature=0)
    text = chat.choices[0].message.content
    assert "Paris" in text
    response = responses.responses.create(model=MODEL, input=QUESTION, temperature=0)
    assert response.output_text == text
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens
    message = messages.messages.create(model=MODEL, max_tokens=200, messages=asked, extra_body={"temperature": 0})
    assert message.content[0].text == text
    assert message.stop_reason == "end_turn"
    count = messages.messages.count_tokens(model=MODEL, messages=asked)
    assert count.input_tokens == chat.usage.prompt_tokens


def test_streams_are_the_same_text(responses: openai.OpenAI, messages: anthropic.Anthropic) -> None:
    whole = responses.responses.create(model=MODEL, input=QUESTION, temperature=0)
    with responses.responses.stream(model=MODEL, input=QUESTION, temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == whole.output_text == stream.get_final_response().output_text
    asked = [{"role": "user", "content": QUESTION}]
    with messages.messages.stream(model=MODEL, max_tokens=200, messages=asked, extra_body={"temperature": 0}) as stream:
        assert "".join(stream.text_stream) == whole.output_text


def test_a_conversation_goes_on_from_a_stored_response(responses: openai.OpenAI) -> None:
    first = responses.responses.create(model=MODEL, input=QUESTION, temperature=0)
    second = responses.responses.create(
        model=MODEL, input="And of Italy?", previous_response_id=first.id, temperature=0, max_output_tokens=20
    )
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0
    assert responses.responses.retrieve(second.id).output_text == second.output_text


def test_a_background_response_can_be_cancelled(responses: openai.OpenAI) -> None:
    response = responses.responses.create(
        model=MODEL,
        input="Tell me a long story.",
        background=True,
        max_output_tokens=1500,
        extra_body={"ignore_eos": True},
    )
    assert response.status == "in_progress"
    assert responses.responses.cancel(response.id).status == "cancelled"
