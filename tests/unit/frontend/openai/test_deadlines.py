"""A request's time: counted from its arrival, bounded by the server, and told from other failures when it is over.

The core enforces it; here a scripted one says so, or never gets to.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pagewire.frontend.http.sse import StreamTimes
from pagewire.frontend.templates.jobs import RenderChat
from pagewire.ipc.errors import DeadlineExceeded
from pagewire.ipc.outputs import RequestEnd, StepOutputs
from pagewire.ipc.requests import AddRequest
from pagewire.ipc.server_config import ServerConfig
from tests.support.fake_core import until
from tests.support.http_server import Running, message, parse_events, running_server

PATHS = {"/v1/completions": {"prompt": "p"}, "/v1/chat/completions": {"messages": [message("hi")]}}
LATE = DeadlineExceeded("The request's 5 s are over.")
ERROR = {
    "message": "The request's 5 s are over.",
    "type": "timeout_error",
    "param": None,
    "code": "deadline_exceeded",
}


async def end_late(server: Running) -> None:
    """Have the core end its latest request for its deadline."""
    request = await server.core.next(AddRequest)
    await server.core.send(StepOutputs(ends=[RequestEnd(request_id=request.request_id, error=LATE.to_info())]))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_time_over_before_the_first_token_is_a_504(path, stream):
    async with running_server("abc", num_steps=0) as server:
        posting = asyncio.create_task(server.post(path, **PATHS[path], stream=stream, timeout=5))
        await until(lambda: bool(server.core.running))
        await end_late(server)
        assert await posting == (504, {"error": ERROR})
        assert await server.metric("vllm:request_success_total", finished_reason="error") == 1
        assert await server.metric("http_requests_total", handler=path, status="504") == 1
        assert server.client.num_live_requests == 0


async def test_time_over_during_a_stream_is_an_event_and_done():
    async with running_server("abcdef", num_steps=2) as server:
        async with server.http.post("/v1/completions", json={"prompt": "p", "stream": True, "timeout": 5}) as response:
            assert response.status == 200
            assert b'"a"' in await response.content.readuntil(b"\n\n")
            await until(lambda: server.core.num_steps_left == 0)
            await end_late(server)
            *_, last, done = parse_events(await response.text())
        assert (last, done) == ({"error": ERROR}, "[DONE]")
        assert await server.metric("vllm:request_success_total", finished_reason="error") == 1


async def test_time_over_during_a_whole_answer_is_a_504():
    async with running_server("abcdef", num_steps=2) as server:
        posting = asyncio.create_task(server.post("/v1/completions", prompt="p", timeout=5))
        await until(lambda: server.core.num_steps_left == 0)
        await end_late(server)
        assert await posting == (504, {"error": ERROR})


async def test_stream_with_a_deadline_does_not_leave_its_proxy_in_silence_for_long():
    body = {"prompt": "p", "stream": True, "timeout": 5}
    async with (
        running_server("abc", times=StreamTimes(keep_alive_s=0.05), num_steps=0) as server,
        server.http.post("/v1/completions", json=body) as response,
    ):
        assert response.status == 200
        assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        await end_late(server)
        assert parse_events(await response.text()) == [{"error": ERROR}, "[DONE]"]


async def test_stream_of_several_prompts_opens_with_the_first_of_them():
    async with running_server("abc", num_steps=0) as server:
        body = {"prompt": ["p", "q"], "stream": True, "timeout": 5}
        posting = asyncio.create_task(server.http.post("/v1/completions", json=body))
        await until(lambda: len(server.core.running) == 2)
        server.core.allow_steps(None)
        async with await posting as response:
            *chunks, done = parse_events(await response.text())
        assert done == "[DONE]"
        for index in (0, 1):
            texts = [choice["text"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
            assert "".join(texts) == "abc"


@pytest.mark.parametrize(
    ("limit_s", "asked_s", "given_s"),
    [(None, None, None), (None, 7, 7), (30, None, 30), (30, 7, 7), (7, 30, 7), (None, 0.5, 0.5), (None, 1e300, 1e300)],
)
async def test_server_bounds_what_a_request_may_ask_for(limit_s, asked_s, given_s):
    config = ServerConfig(request_timeout=limit_s)
    async with running_server("x", config=config) as server:
        body: dict[str, Any] = {} if asked_s is None else {"timeout": asked_s}
        await server.complete(**body)
        sent_s = (await server.core.next(AddRequest)).timeout_s
        if given_s is None:
            assert sent_s is None
        else:
            # What passed since the arrival is taken off.
            assert sent_s is not None
            assert max(given_s - 5, 0) < sent_s <= given_s or sent_s == given_s


@pytest.mark.parametrize("value", [0, -1, "5", True, [5]])
async def test_what_is_no_time_is_a_400(value):
    async with running_server("x") as server:
        status, answer = await server.post("/v1/completions", prompt="p", timeout=value)
        assert (status, answer["error"]["param"]) == (400, "timeout")


async def test_request_whose_time_is_over_before_it_is_sent_never_reaches_the_engine():
    async with running_server("x") as server:
        status, answer = await server.post("/v1/completions", prompt="p", timeout=1e-9)
        assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")
        assert not [received for received in server.core.received if isinstance(received, AddRequest)]
        assert (await server.complete())["choices"][0]["text"] == "x"


class EndlessRenderer:
    async def render(self, chat: RenderChat) -> str:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("path", PATHS)
async def test_time_is_over_while_the_prompt_is_rendered_or_tokenized(path, monkeypatch):
    async with running_server("x", chats=EndlessRenderer()) as server:
        never = asyncio.Event().wait
        monkeypatch.setattr(server.serving.tokenizer, "encode_async", lambda *_args, **_options: never())
        status, answer = await server.post(path, **PATHS[path], timeout=0.05)
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (504, "deadline_exceeded", "timeout")
        assert not [received for received in server.core.received if isinstance(received, AddRequest)]


async def test_engine_is_given_what_is_left_when_all_prompts_are_tokenized(monkeypatch):
    now = 1000.0
    async with running_server("x", clock=lambda: now) as server:
        encode_async = server.serving.tokenizer.encode_async

        async def encode_slowly(text, *, add_special_tokens):
            nonlocal now
            now += 2.0
            return await encode_async(text, add_special_tokens=add_special_tokens)

        monkeypatch.setattr(server.serving.tokenizer, "encode_async", encode_slowly)
        await server.complete(prompt=["p", "q"], timeout=10)
        assert [(await server.core.next(AddRequest)).timeout_s for _ in range(2)] == [6.0, 6.0]
