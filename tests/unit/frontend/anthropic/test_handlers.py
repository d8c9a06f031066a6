"""/v1/messages as the `anthropic` package uses it, and as its own types read it."""

from __future__ import annotations

import asyncio
import contextlib

import anthropic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from pagewire.ipc.errors import EngineDead
from pagewire.ipc.requests import AddRequest
from pagewire.ipc.server_config import ServerConfig
from tests.support.http_server import running_server

_HI = [{"role": "user", "content": "hi"}]


@contextlib.asynccontextmanager
async def sdk(*texts, key: str = "secret", **options):
    async with (
        running_server(*texts, config=ServerConfig(api_key=("secret",)), **options) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key=key, max_retries=0) as client,
    ):
        yield server, client


async def test_a_whole_message():
    async with sdk("Hello!") as (_, client):
        message = await client.messages.create(model="fake", max_tokens=100, system="be nice", messages=_HI)
        [block] = message.content
        assert block.text == "Hello!"
        assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
        assert message.usage.output_tokens == 7
        count = await client.messages.count_tokens(model="fake", system="be nice", messages=_HI)
        assert count.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens


async def test_a_stream_tells_of_the_message_in_order():
    async with sdk("Hello!") as (_, client):
        stream = await client.messages.create(model="fake", max_tokens=100, messages=_HI, stream=True)
        events = [event async for event in stream]
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(event.delta.text for event in events if event.type == "content_block_delta") == "Hello!"
    assert events[-2].delta.stop_reason == "end_turn"
    assert events[-2].usage.output_tokens == 7


async def test_the_stream_helper_accumulates_the_message():
    async with sdk("Hello!") as (_, client):
        async with client.messages.stream(model="fake", max_tokens=3, messages=_HI) as stream:
            assert "".join([text async for text in stream.text_stream]) == "Hel"
            message = await stream.get_final_message()
        assert message.stop_reason == "max_tokens"


async def test_bodies_and_events_are_what_the_sdk_describes():
    async with running_server("Hello!") as server:
        body = {"max_tokens": 100, "messages": _HI}
        _, whole = await server.post("/v1/messages", **body)
        TypeAdapter(Message).validate_python(whole)
        adapter = TypeAdapter(RawMessageStreamEvent)
        async with server.http.post("/v1/messages", json={**body, "stream": True}) as response:
            assert response.content_type == "text/event-stream"
            blocks = [block for block in (await response.text()).split("\n\n") if block]
        for block in blocks:
            name, data = block.split("\n")
            if name != "event: ping":
                assert adapter.validate_json(data.removeprefix("data: ")).type == name.removeprefix("event: ")


async def test_a_stop_sequence_is_named():
    async with sdk("one END two") as (_, client):
        message = await client.messages.create(model="fake", max_tokens=100, messages=_HI, stop_sequences=["END"])
        assert (message.content[0].text, message.stop_reason, message.stop_sequence) == ("one ", "stop_sequence", "END")


async def test_an_answer_that_was_aborted_is_told_from_one_that_came_to_its_end():
    async with sdk("Hello!", num_steps=0) as (server, client):
        answering = asyncio.create_task(client.messages.create(model="fake", max_tokens=9, messages=_HI))
        request = await server.core.next(AddRequest)
        server.client.abort([request.request_id])
        assert (await answering).stop_reason == "pause_turn"


async def test_a_prefill_is_gone_on_with():
    async with sdk("llo") as (server, client):
        messages = [*_HI, {"role": "assistant", "content": "He"}]
        await client.messages.create(model="fake", max_tokens=100, messages=messages)
        ids = (await server.core.next(AddRequest)).inputs.prompt_token_ids
        assert server.serving.tokenizer.decode(ids, skip_special_tokens=False).endswith("assistant: He")


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        ({"model": "other"}, anthropic.NotFoundError, "not_found_error"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, anthropic.BadRequestError,
         "image"),
        ({"extra_body": {"nonsense": 1}}, anthropic.BadRequestError, "nonsense"),
    ],
)  # fmt: skip
async def test_errors_have_its_shape(body, error, said):
    async with sdk("Hello!") as (_, client):
        with pytest.raises(error, match=said) as raised:
            await client.messages.create(**{"model": "fake", "max_tokens": 100, "messages": _HI, **body})
        assert raised.value.body["type"] == "error"
        assert raised.value.body["request_id"]


async def test_a_wrong_key_is_an_authentication_error():
    async with sdk("Hello!", key="wrong") as (_, client):
        with pytest.raises(anthropic.AuthenticationError, match="authentication_error"):
            await client.messages.create(model="fake", max_tokens=100, messages=_HI)


async def test_a_failure_amid_a_stream_is_an_event():
    async with sdk("Hello!" * 20, num_steps=2) as (server, client):
        stream = await client.messages.create(model="fake", max_tokens=100, messages=_HI, stream=True)

        async def read() -> None:
            async for event in stream:
                if event.type == "content_block_delta":
                    server.client.mark_dead(EngineDead("the engine is gone"))

        with pytest.raises(anthropic.APIStatusError, match="gone"):
            await read()
