"""A loop of tools over /v1/responses: thoughts, text and calls are items, and go back as such."""

from __future__ import annotations

import json

import openai
import pytest
from openai.types import responses as sdk_types
from pydantic import TypeAdapter

from tests.support.tool_chats import CALL, PARAMETERS, THOUGHT, last_prompt, tool_server

WEATHER = {"type": "function", "name": "get_weather", "description": "d", "parameters": PARAMETERS, "strict": True}


def client_of(server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="key", max_retries=0)


async def test_a_loop_of_tools():
    async with tool_server(THOUGHT + CALL) as server, client_of(server) as client:
        first = await client.responses.create(model="fake", input="weather?", tools=[WEATHER])
        assert first.status == "completed"
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
        reasoning, message, call = first.output
        assert reasoning.content[0].text == "Hm."
        assert message.content[0].text.strip() == "I look."
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Zürich"})
        assert first.usage.output_tokens_details.reasoning_tokens > 0
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        by_id = await client.responses.create(
            model="fake", input=[result], previous_response_id=first.id, tools=[WEATHER]
        )
        assert by_id.output_text.strip() == "I look."
        prompt = last_prompt(server)
        assert prompt.count("get_weather") == 2
        assert prompt.endswith("tool: sunny\nassistant: ")
        items = [{"role": "user", "content": "weather?"}, *first.output, result]
        await client.responses.create(model="fake", input=items, tools=[WEATHER])
        assert last_prompt(server) == prompt, "sending the items back is the same as going on from them"


async def test_a_stream_brings_the_same_items():
    async with tool_server(THOUGHT + CALL) as server, client_of(server) as client:
        whole = await client.responses.create(model="fake", input="weather?", tools=[WEATHER])
        stream = await client.responses.create(model="fake", input="weather?", tools=[WEATHER], stream=True)
        events = [event async for event in stream]
    adapter = TypeAdapter(sdk_types.ResponseStreamEvent)
    for event in events:
        adapter.validate_python(event.model_dump(exclude_unset=True, by_alias=True))
    streamed = events[-1].response
    assert [item.type for item in streamed.output] == [item.type for item in whole.output]
    assert streamed.output[2].arguments == whole.output[2].arguments
    arguments = [event for event in events if event.type.startswith("response.function_call_arguments")]
    assert "".join(event.delta for event in arguments[:-1]) == arguments[-1].arguments == whole.output[2].arguments
    thoughts = [event for event in events if event.type.startswith("response.reasoning_text")]
    assert "".join(event.delta for event in thoughts[:-1]) == thoughts[-1].text == "Hm."
    assert streamed.usage.output_tokens == whole.usage.output_tokens


async def test_text_behind_a_call_is_an_item_of_its_own_streamed_and_whole():
    async with tool_server(f"I look.{CALL}And again.{CALL}Done.") as server, client_of(server) as client:
        whole = await client.responses.create(model="fake", input="x", tools=[WEATHER])
        stream = await client.responses.create(model="fake", input="x", tools=[WEATHER], stream=True)
        streamed = [event async for event in stream][-1].response
    for response in (whole, streamed):
        kinds = ["message", "function_call", "message", "function_call", "message"]
        assert [item.type for item in response.output] == kinds
        assert [item.content[0].text for item in response.output[::2]] == ["I look.", "And again.", "Done."]


async def test_a_named_tool_is_called():
    async with tool_server('{"city": "Zürich"}') as server, client_of(server) as client:
        choice = {"type": "function", "name": "get_weather"}
        response = await client.responses.create(model="fake", input="x", tools=[WEATHER], tool_choice=choice)
        assert response.tool_choice.name == "get_weather"
        with pytest.raises(openai.BadRequestError, match="other"):
            await client.responses.create(
                model="fake", input="x", tools=[WEATHER], tool_choice={"type": "function", "name": "other"}
            )
