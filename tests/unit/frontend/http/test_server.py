"""The application as a whole: routes, keys, ids, and clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from pathlib import Path

import aiohttp
import pytest

from pagewire.frontend.http import server as http_server
from pagewire.frontend.http.sse import StreamTimes
from pagewire.ipc.requests import AbortRequests
from pagewire.ipc.server_config import ServerConfig
from tests.support.fake_core import until
from tests.support.http_server import aborted, message, parse_events, running_server


async def test_unknown_path_and_method_are_errors_in_openais_shape():
    async with running_server() as server:
        async with server.http.get("/v1/nothing") as response:
            assert response.status == 404
            assert (await response.json())["error"]["code"] == "not_found"
        async with server.http.get("/v1/completions") as response:
            assert response.status == 405
            assert response.headers["Allow"] == "POST"
            assert (await response.json())["error"]["code"] == "method_not_allowed"


# ---- clients that leave


async def open_request(
    server, path: str, body: dict, *, receive_buffer: int | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request over a bare socket."""
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
    reader, writer = await asyncio.open_connection(sock=sock)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    return reader, writer


def hang_up(writer: asyncio.StreamWriter, *, hard: bool) -> None:
    """Close, or reset, the connection."""
    if hard:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort() if hard else writer.close()


@pytest.mark.parametrize("hard", [False, True], ids=["close", "reset"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("num_steps", [0, 3], ids=["waiting", "decoding"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [message("x")]}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 200, "n": 3, "temperature": 1}),
        ("/v1/completions", {"prompt": ["x", "y", "z"], "max_tokens": 200}),
    ],
    ids=["chat", "children", "prompts"],
)
async def test_request_of_a_client_that_left_is_aborted(path, body, num_steps, stream, hard):
    async with running_server("a" * 200, num_steps=num_steps) as server:
        _, writer = await open_request(server, path, {**body, "stream": stream})
        num_requests = 3 if isinstance(body.get("prompt"), list) else 1
        await until(lambda: len(server.core.running) == num_requests)
        await until(lambda: server.core.num_steps_left == 0)
        hang_up(writer, hard=hard)
        await aborted(server.core)
        assert server.client.num_live_requests == 0
        server.core.allow_steps(None)
        assert (await server.complete(max_tokens=2))["choices"][0]["text"] == "aa"
        assert await server.metric("vllm:request_success_total", finished_reason="abort") == (
            body.get("n", 1) * num_requests
        )


async def test_other_streams_are_untouched_by_resets():
    async with running_server("abcdefghijklmnopqrstuvwxyz" * 6, num_steps=5) as server:
        body = {"prompt": "p", "max_tokens": 150, "stream": True}
        leaving = [(await open_request(server, "/v1/completions", body))[1] for _ in range(4)]
        staying = [asyncio.create_task(server.stream_completion(prompt="p", max_tokens=150)) for _ in range(4)]
        await until(lambda: len(server.core.running) == 8)
        for writer in leaving:
            hang_up(writer, hard=True)
        await until(lambda: len(server.core.running) == 4)
        server.core.allow_steps(None)
        expected = ("abcdefghijklmnopqrstuvwxyz" * 6)[:150]
        for chunks in await asyncio.gather(*staying):
            assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == expected


async def test_stop_string_ends_one_child_and_aborts_it_alone():
    # The core stops at the stop string: one that ran ahead of the frontend would have nothing left to abort.
    async with running_server("one END" + "x" * 100, "y" * 40, num_steps=len("one END")) as server:
        body = {"n": 2, "temperature": 1, "stop": "END", "max_tokens": 40}
        completing = asyncio.create_task(server.complete(**body))
        assert (await server.core.next(AbortRequests)).children == [(1, 0)]
        server.core.allow_steps(None)
        answer = await completing
        assert [choice["text"] for choice in answer["choices"]] == ["one ", "y" * 40]
        assert len([m for m in server.core.received if isinstance(m, AbortRequests)]) == 1


async def test_many_streams_all_finish_with_the_right_usage():
    async with running_server("abcdefgh" * 4) as server:
        body = {"max_tokens": 20, "stream_options": {"include_usage": True}}
        streams = await asyncio.gather(*(server.stream_completion(**body) for _ in range(100)))
        assert {chunks[-1]["usage"]["completion_tokens"] for chunks in streams} == {20}
        assert server.client.num_live_requests == 0
        assert await server.metric("vllm:generation_tokens_total") == 2000


# ---- slow readers


async def test_client_that_stops_reading_is_cut_off_and_never_told_done():
    times = StreamTimes(keep_alive_s=30, write_timeout_s=0.2)
    text = "a" * 60_000
    async with running_server(text, times=times, info={"max_model_len": 100_000}) as server:
        body = {"prompt": "p", "max_tokens": 60_000, "stream": True, "logprobs": 5}
        reader, writer = await open_request(server, "/v1/completions", body)
        writer.transport.pause_reading()
        await until(lambda: bool(server.core.running))
        async with asyncio.timeout(20):
            await aborted(server.core)
        writer.transport.resume_reading()
        received = b""
        with contextlib.suppress(ConnectionError):
            received = await reader.read()
        assert b"[DONE]" not in received
        assert (await server.complete(max_tokens=2))["choices"][0]["text"] == "aa"


async def test_client_that_never_reads_its_whole_answer_is_cut_off():
    times = StreamTimes(write_timeout_s=0.2)
    async with running_server("a" * 3000, times=times, info={"max_model_len": 4000}) as server:
        body = {"prompt": "p", "max_tokens": 3000, "logprobs": 20}
        tasks_before = len(asyncio.all_tasks())
        reader, writer = await open_request(server, "/v1/completions", body, receive_buffer=4096)
        writer.transport.pause_reading()
        await until(lambda: bool(server.core.running))
        await aborted(server.core)
        async with asyncio.timeout(20):
            await until(lambda: len(asyncio.all_tasks()) <= tasks_before)
        writer.transport.resume_reading()
        with pytest.raises(ConnectionError):
            await reader.read()
        assert (await server.complete(max_tokens=2))["choices"][0]["text"] == "aa"


async def test_waiting_stream_is_kept_alive_by_comments():
    times = StreamTimes(keep_alive_s=0.05, write_timeout_s=30)
    async with running_server("abc", times=times, num_steps=0) as server:
        body = {"prompt": "p", "stream": True}
        async with server.http.post("/v1/completions", json=body) as response:
            assert response.status == 200  # accepted, though nothing was drawn yet
            assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
            assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
            server.core.allow_steps(None)
            assert parse_events(await response.text())[-1] == "[DONE]"


# ---- listening


async def test_server_answers_on_a_unix_socket(tmp_path: Path):
    async with running_server("x") as server, contextlib.AsyncExitStack() as stack:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "http.sock"))
        listener.listen()
        listener.setblocking(False)
        app = http_server.create_app(server.serving, ServerConfig())
        await stack.enter_async_context(http_server.serve(app, [listener]))
        connector = aiohttp.UnixConnector(str(tmp_path / "http.sock"))
        http = await stack.enter_async_context(aiohttp.ClientSession("http://x", connector=connector))
        async with http.post("/v1/completions", json={"prompt": "p"}) as response:
            assert (await response.json())["choices"][0]["text"] == "x"


async def test_stopping_ends_what_runs():
    async with running_server("a" * 100, num_steps=2) as server, contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        app = http_server.create_app(server.serving, ServerConfig())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        http = await stack.enter_async_context(aiohttp.ClientSession(url))
        async with http_server.serve(app, [listener]):
            posted = asyncio.create_task(http.post("/v1/completions", json={"prompt": "p"}))
            await until(lambda: bool(server.core.running))
        await aborted(server.core)
        with pytest.raises(aiohttp.ClientError):
            await posted
