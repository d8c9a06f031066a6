"""Calls of tools and forms of answers of the packaged model, by the `openai` SDK and in the other dialects."""

from __future__ import annotations

import json
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel, Field

from tests.support.running_server import RunningServer

pytestmark = pytest.mark.slow

MODEL = "SmolLM2-135M-Instruct"
QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


class GetWeather(BaseModel):
    """Weather of a city."""

    city: str = Field(max_length=30)
    unit: Literal["C", "F"]


class City(BaseModel):
    name: str = Field(max_length=30)
    is_capital: bool


TOOL: Any = openai.pydantic_function_tool(GetWeather)
NAMED: Any = {"type": "function", "function": {"name": "GetWeather"}}


@pytest.fixture(scope="module")
def client(smollm2: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0, timeout=120)


def test_a_loop_over_tools(client: openai.OpenAI) -> None:
    conversation = list(QUESTION)
    with client.chat.completions.stream(
        model=MODEL,
        messages=conversation,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    ) as stream:
        answer = stream.get_final_completion()
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, GetWeather)
    conversation += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}]
    answer = client.chat.completions.create(
        model=MODEL, messages=conversation, tools=[TOOL], tool_choice="none", temperature=0, max_tokens=30
    )
    assert answer.choices[0].message.content


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_forced_calls_are_valid_at_any_temperature_streamed_and_whole(client: openai.OpenAI, choice: Any) -> None:
    asked: Any = {
        "model": MODEL, "messages": QUESTION, "tools": [TOOL], "tool_choice": choice, "temperature": 1.5, "seed": 7,
        "n": 4, "max_tokens": 400,
    }  # fmt: skip
    whole = client.chat.completions.create(**asked)
    calls = [[call.function.arguments for call in each.message.tool_calls or []] for each in whole.choices]
    for each, arguments in zip(whole.choices, calls, strict=True):
        assert each.finish_reason == ("tool_calls" if choice == "required" else "stop")
        assert arguments
        for written in arguments:
            GetWeather.model_validate_json(written)
    streamed: list[list[str]] = [[] for _ in range(4)]
    for chunk in client.chat.completions.create(**asked, stream=True):
        for each in chunk.choices:
            for delta in each.delta.tool_calls or ():
                if delta.index == len(streamed[each.index]):
                    streamed[each.index].append("")
                streamed[each.index][delta.index] += delta.function.arguments
    assert streamed == calls


def test_answers_are_parsed_into_models(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=QUESTION, response_format=City, temperature=0)
    assert isinstance(answer.choices[0].message.parsed, City)
    text = client.completions.create(
        model=MODEL, prompt="Rome is", extra_body={"structured_outputs": {"choice": ["a city", "a river"]}}
    )
    assert text.choices[0].text in ("a city", "a river")
    with pytest.raises(openai.BadRequestError, match="regex"):
        client.completions.create(model=MODEL, prompt="x", extra_body={"guided_regex": "["})


def test_the_other_dialects_force_calls_as_well(client: openai.OpenAI, smollm2: RunningServer) -> None:
    function: Any = {"type": "function", "name": "GetWeather", "parameters": TOOL["function"]["parameters"]}
    response = client.responses.create(
        model=MODEL, input="Weather in Paris?", tools=[function], tool_choice="required", temperature=0
    )
    called = [item for item in response.output if item.type == "function_call"]
    assert called
    GetWeather.model_validate_json(called[0].arguments)
    messages = anthropic.Anthropic(base_url=smollm2.url, api_key="none", max_retries=0, timeout=120)
    message = messages.messages.create(
        model=MODEL,
        max_tokens=200,
        messages=QUESTION,
        tools=[{"name": "GetWeather", "input_schema": TOOL["function"]["parameters"]}],
        tool_choice={"type": "any"},
        extra_body={"temperature": 0},
    )
    assert message.stop_reason == "tool_use"
    [use, *_] = [block for block in message.content if block.type == "tool_use"]
    GetWeather.model_validate_json(json.dumps(use.input))
