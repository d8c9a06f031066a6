"""The official `openai` package against the server: what its users see."""

from __future__ import annotations

import contextlib

import openai
import pytest

from pagewire.ipc.errors import DeadlineExceeded, Overloaded, PoisonRequest
from pagewire.ipc.requests import AddRequest
from pagewire.ipc.server_config import ServerConfig
from tests.support.http_server import running_server


@contextlib.asynccontextmanager
async def sdk(*texts, key: str = "secret", **options):
    config = ServerConfig(api_key=("secret",))
    async with (
        running_server(*texts, config=config, **options) as server,
        openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0) as client,
    ):
        yield client


_HI = [{"role": "user", "content": "hi"}]


async def test_chat():
    async with sdk("Hello!") as client:
        answer = await client.chat.completions.create(model="fake", messages=_HI)
        assert answer.choices[0].message.content == "Hello!"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.completion_tokens == 7
        assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_chat_stream_with_usage():
    async with sdk("Hello!") as client:
        stream = await client.chat.completions.create(
            model="fake", messages=_HI, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello!"
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + 7


async def test_stream_helper_accumulates_the_answer():
    async with sdk("Hello!") as client:
        async with client.chat.completions.stream(model="fake", messages=_HI) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == "Hello!"


async def test_chat_with_children_stops_and_logprobs():
    async with sdk("one END", "two END") as client:
        answer = await client.chat.completions.create(
            model="fake", messages=_HI, n=2, stop=["END"], logprobs=True, top_logprobs=2, temperature=1, seed=3
        )
        assert [choice.message.content for choice in answer.choices] == ["one ", "two "]
        first = answer.choices[0].logprobs.content[0]
        assert (first.token, first.bytes, len(first.top_logprobs)) == ("o", [ord("o")], 2)


async def test_completions_with_echo_and_vllms_extras():
    async with sdk("def") as client:
        answer = await client.completions.create(
            model="fake", prompt="abc", echo=True, logprobs=1, max_tokens=2, extra_body={"top_k": 5, "ignore_eos": True}
        )
        assert answer.choices[0].text == "abcde"
        assert answer.choices[0].logprobs.token_logprobs[0] is None
        stream = await client.completions.create(model="fake", prompt=["a", "b"], max_tokens=9, stream=True)
        texts = {0: "", 1: ""}
        async for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == {0: "def", 1: "def"}


async def test_models():
    async with sdk() as client:
        assert [model.id async for model in client.models.list()] == ["fake"]
        assert (await client.models.retrieve("fake")).id == "fake"


async def test_errors_become_the_matching_classes():
    async with sdk(info={"max_model_len": 16}) as client:
        with pytest.raises(openai.NotFoundError) as not_found:
            await client.chat.completions.create(model="gpt-4", messages=_HI)
        assert not_found.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as too_long:
            await client.completions.create(model="fake", prompt="x" * 100)
        assert too_long.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="temperature"):
            await client.completions.create(model="fake", prompt="x", temperature=3)
    async with sdk(key="wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()


@pytest.mark.parametrize(
    ("error", "num_tries"),
    [
        (DeadlineExceeded("The request's 1 s are over."), 1),
        (PoisonRequest("It ends processes."), 1),
        (Overloaded("Too many requests wait.", retry_after_s=1), 2),
    ],
)
async def test_only_what_may_work_another_time_is_sent_again(error, num_tries):
    async with (
        running_server(refuses=lambda _request: error) as server,
        openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=1) as client,
    ):
        with pytest.raises(openai.InternalServerError) as raised:
            await client.chat.completions.create(model="fake", messages=_HI, extra_body={"timeout": 30})
        assert error.message in raised.value.message
        assert len([message for message in server.core.received if isinstance(message, AddRequest)]) == num_tries
