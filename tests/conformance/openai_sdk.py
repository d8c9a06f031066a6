"""The methods of the official `openai` SDK that an ordinary application uses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import openai
import pydantic
from checks import KEY, MODEL, QUESTION, URL, WEATHER, run

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=300)


class Person(pydantic.BaseModel):
    """What an answer is parsed into."""

    name: str
    age: int
    is_student: bool


def check_models() -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def check_chat() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_completion_tokens=20)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0


def check_stream() -> None:
    fields = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 20}
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True))
    assert all(len(chunk.choices) == 1 for chunk in chunks), "without include_usage every chunk has a choice"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert len({chunk.id for chunk in chunks}) == 1


def check_include_usage() -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == []
    assert 1 <= chunks[-1].usage.completion_tokens <= 5
    assert all(chunk.usage is None for chunk in chunks[:-1])


def check_stream_helper() -> None:
    fields = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 10}
    with client.chat.completions.stream(**fields) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        assert stream.get_final_completion().choices[0].message.content == text


def check_several_answers_with_a_seed() -> None:
    fields = {"model": MODEL, "messages": QUESTION, "n": 2, "seed": 7, "temperature": 1.0, "max_tokens": 16}
    first, second = (
        [choice.message.content for choice in client.chat.completions.create(**fields).choices] for _ in range(2)
    )
    assert first == second
    assert first[0] != first[1]


def check_stop() -> None:
    answer = client.completions.create(model=MODEL, prompt="1, 2, 3, 4,", temperature=0, max_tokens=30, stop=["7", "9"])
    assert "7" not in answer.choices[0].text
    assert answer.choices[0].finish_reason == "stop"


def check_logprobs() -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in content)
    shown = b"".join(bytes(token.bytes or []) for token in content).decode()
    assert shown == answer.choices[0].message.content


def check_completions() -> None:
    answer = client.completions.create(model=MODEL, prompt=["Once upon", "The capital"], n=2, max_tokens=4, best_of=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    stream = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=4, temperature=0, stream=True)
    whole = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=4, temperature=0)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def check_echo() -> None:
    prompt = "The capital of France is"
    answer = client.completions.create(model=MODEL, prompt=prompt, echo=True, logprobs=2, max_tokens=0)
    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text == prompt == "".join(logprobs.tokens)
    assert logprobs.token_logprobs[0] is None
    assert all(math.isfinite(logprob) for logprob in logprobs.token_logprobs[1:])
    assert answer.usage.completion_tokens == 0


def check_beam_search() -> None:
    answer = client.completions.create(
        model=MODEL, prompt="The capital of France is", n=3, max_tokens=6, extra_body={"use_beam_search": True}
    )
    assert len({choice.text for choice in answer.choices}) == 3


def check_parse() -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Ada is 36 years old. Who is she?"}],
        response_format=Person,
        temperature=0,
        max_tokens=200,
    )
    assert isinstance(answer.choices[0].message.parsed, Person)


def check_json_object() -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": 'Answer in JSON: {"city": ...}. The capital of France?'}],
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=200,
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


def check_tools_loop() -> None:
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, tools=[WEATHER], tool_choice="required", temperature=0, max_tokens=200
    )
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    for call in message.tool_calls:
        assert call.type == "function"
        assert call.function.name == "get_weather"
        assert set(json.loads(call.function.arguments)) == {"city", "unit"}
    messages.append(message)
    messages += [{"role": "tool", "tool_call_id": call.id, "content": '{"degrees": 21}'} for call in message.tool_calls]
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, tools=[WEATHER], tool_choice="none", temperature=0, max_tokens=20
    )
    assert answer.choices[0].message.content
    assert not answer.choices[0].message.tool_calls


def check_streamed_named_tool() -> None:
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "The weather in London?"}],
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=200,
        stream=True,
    )
    name, arguments = "", ""
    for chunk in chunks:
        for call in chunk.choices[0].delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert name == "get_weather"
    assert json.loads(arguments)["city"] in ("Paris", "London")


def check_embeddings() -> None:
    answer = client.embeddings.create(model=MODEL, input=["a cat", "a dog"])
    first, second = (item.embedding for item in answer.data)
    assert len(first) == len(second) > 100
    assert math.isclose(math.hypot(*first), 1, rel_tol=1e-3)
    floats = client.embeddings.create(model=MODEL, input="a cat", encoding_format="float").data[0].embedding
    assert max(abs(a - b) for a, b in zip(first, floats, strict=True)) < 1e-3
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0


def check_responses() -> None:
    answer = client.responses.create(
        model=MODEL, instructions="Be brief.", input="The capital of France?", temperature=0, max_output_tokens=20
    )
    assert answer.status in ("completed", "incomplete")
    assert answer.output_text
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert client.responses.retrieve(answer.id).output_text == answer.output_text
    followed = client.responses.create(
        model=MODEL, input="And of Italy?", previous_response_id=answer.id, max_output_tokens=16
    )
    assert followed.previous_response_id == answer.id
    client.responses.delete(answer.id)
    _failure(openai.NotFoundError, lambda: client.responses.retrieve(answer.id))


def check_streamed_responses() -> None:
    stream = client.responses.create(model=MODEL, input="Say hello.", max_output_tokens=16, stream=True)
    events = list(stream)
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))


def check_parsed_responses() -> None:
    answer = client.responses.parse(
        model=MODEL, input="Ada is 36 years old. Who is she?", text_format=Person, max_output_tokens=200, temperature=0
    )
    assert isinstance(answer.output_parsed, Person)


def _failure(error: type[openai.APIStatusError], call: Callable[[], object]) -> openai.APIStatusError:
    """Return the error that a call must raise."""
    try:
        call()
    except error as exc:
        return exc
    raise AssertionError(f"no {error.__name__}")


def _refusal(error: type[openai.APIStatusError], **fields: object) -> openai.APIStatusError:
    values = {"model": MODEL, "messages": QUESTION, "max_tokens": 1, **fields}
    return _failure(error, lambda: client.chat.completions.create(**values))


def check_errors() -> None:
    assert _refusal(openai.NotFoundError, model="nobody").code == "model_not_found"
    assert _refusal(openai.BadRequestError, temperature=5).param == "temperature"
    assert _refusal(openai.BadRequestError, messages=[]).type == "invalid_request_error"
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    assert "image_url" in _refusal(openai.BadRequestError, messages=[{"role": "user", "content": [image]}]).message
    stranger = client.with_options(api_key="wrong")
    assert _failure(openai.AuthenticationError, stranger.models.list).status_code == 401


if __name__ == "__main__":
    run(globals())
