"""A loop of tools over /v1/messages: thoughts, text and calls are blocks, and go back as such."""

from __future__ import annotations

import anthropic

from tests.support.tool_chats import CALL, PARAMETERS, THOUGHT, last_prompt, tool_server

WEATHER = {"name": "get_weather", "description": "d", "input_schema": PARAMETERS}
ASKED = {"role": "user", "content": "weather?"}


def client_of(server) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=server.url, api_key="key", max_retries=0)


async def test_a_loop_of_tools():
    async with tool_server(THOUGHT + CALL) as server, client_of(server) as client:
        first = await client.messages.create(model="fake", max_tokens=500, messages=[ASKED], tools=[WEATHER])
        assert first.stop_reason == "tool_use"
        thinking, text, call = first.content
        assert (thinking.thinking, text.text.strip()) == ("Hm.", "I look.")
        assert (call.name, call.input) == ("get_weather", {"city": "Zürich"})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
        answer = {"role": "assistant", "content": first.content}
        messages = [ASKED, answer, {"role": "user", "content": [result]}]
        await client.messages.create(model="fake", max_tokens=500, messages=messages, tools=[WEATHER])
        assert last_prompt(server).endswith("tool: sunny\nassistant: ")
        counted = await client.messages.count_tokens(model="fake", messages=messages, tools=[WEATHER])
        assert counted.input_tokens == len(last_prompt(server).encode())


async def test_a_stream_brings_the_same_blocks():
    async with tool_server(THOUGHT + CALL) as server, client_of(server) as client:
        whole = await client.messages.create(model="fake", max_tokens=500, messages=[ASKED], tools=[WEATHER])
        async with client.messages.stream(model="fake", max_tokens=500, messages=[ASKED], tools=[WEATHER]) as stream:
            async for _ in stream:
                pass
            streamed = await stream.get_final_message()
    assert [block.type for block in streamed.content] == ["thinking", "text", "tool_use"]
    assert streamed.content[0].thinking == whole.content[0].thinking
    assert streamed.content[1].text == whole.content[1].text
    assert streamed.content[2].input == whole.content[2].input
    assert (streamed.stop_reason, streamed.usage.output_tokens) == ("tool_use", whole.usage.output_tokens)


async def test_a_tool_that_must_be_called_ends_in_tool_use():
    async with tool_server('{"city": "Zürich"}', CALL) as server, client_of(server) as client:
        for choice in ({"type": "tool", "name": "get_weather"}, {"type": "any"}):
            await client.messages.create(
                model="fake", max_tokens=500, messages=[ASKED], tools=[WEATHER], tool_choice=choice
            )
