"""Framing, timers and backpressure of event streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from pagewire.frontend.http.sse import DONE, EventStream, StreamTimes, event


@contextlib.asynccontextmanager
async def streaming(
    handle: Callable[[EventStream], Awaitable[None]], times: StreamTimes
) -> AsyncIterator[ClientSession]:
    """A server whose one handler drives a stream."""

    async def handler(request: web.Request) -> web.StreamResponse:
        async with EventStream(request, times, {"X-Extra": "1"}) as stream:
            await handle(stream)
        return stream.response

    app = web.Application()
    app.router.add_get("/", handler)
    async with TestServer(app) as server, ClientSession(server.make_url("/")) as http:
        yield http


async def test_events_are_framed_and_done_ends_them():
    async def handle(stream: EventStream) -> None:
        await stream.send(event(b'{"a":1}') + event(b'{"a":2}'))
        await stream.finish(event(b'{"a":3}') + DONE)

    async with streaming(handle, StreamTimes()) as http, http.get("") as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["X-Accel-Buffering"] == "no"
        assert response.headers["X-Extra"] == "1"
        expected = b'data: {"a":1}\n\ndata: {"a":2}\n\ndata: {"a":3}\n\ndata: [DONE]\n\n'
        assert await response.read() == expected


async def test_sends_of_several_tasks_stay_whole():
    async def handle(stream: EventStream) -> None:
        async def send(letter: bytes) -> None:
            for _ in range(50):
                await stream.send(event(letter * 2000))

        await asyncio.gather(*(send(letter) for letter in (b"a", b"b", b"c")))
        await stream.finish()

    async with streaming(handle, StreamTimes()) as http, http.get("") as response:
        *events, done, rest = (await response.read()).split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        assert {len(set(body.removeprefix(b"data: "))) for body in events} == {1}
        assert len(events) == 150


async def test_silent_stream_sends_comments_and_a_busy_one_none():
    released = asyncio.Event()

    async def handle(stream: EventStream) -> None:
        await stream.send(event(b"1"))
        await released.wait()
        await stream.finish()

    async with streaming(handle, StreamTimes(keep_alive_s=0.02)) as http, http.get("") as response:
        assert await response.content.readuntil(b"\n\n") == b"data: 1\n\n"
        assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        released.set()
        assert (await response.read()).endswith(b"data: [DONE]\n\n")

    async def finish_at_once(stream: EventStream) -> None:
        await stream.finish()

    async with streaming(finish_at_once, StreamTimes(keep_alive_s=0.02)) as http, http.get("") as response:
        assert await response.read() == b"data: [DONE]\n\n"


async def test_handler_ends_once_its_client_has_not_read_for_the_limit():
    ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def handle(stream: EventStream) -> None:
        try:
            while True:
                await stream.send(b"x" * 100_000)
        except BaseException as error:  # reported to the test, whatever it is
            ended.set_result(error)
            raise

    times = StreamTimes(keep_alive_s=30, write_timeout_s=0.1)
    async with streaming(handle, times) as http, http.get("", read_bufsize=1024) as response:
        async with asyncio.timeout(10):
            assert isinstance(await ended, ConnectionError | asyncio.CancelledError)
        with pytest.raises(Exception, match=r"payload|transfer|closed|reset"):
            await response.read()
