"""What is no HTTP, or too much of it, is answered in OpenAI's shape, and the connection is closed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket

import pytest
from aiohttp import web

from pagewire.frontend.http import http_protocol
from pagewire.frontend.http import server as http_server
from pagewire.frontend.http.sse import StreamTimes
from pagewire.ipc.server_config import ServerConfig
from tests.support.fake_core import until
from tests.support.http_server import running_server


async def exchange(url: str, data: bytes) -> tuple[int, dict]:
    """Send bytes over a bare socket; return the answer's status and body, after which the server must hang up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    writer.write(data)
    async with asyncio.timeout(10):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
     b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n"],
)  # fmt: skip
async def test_bytes_that_are_no_request_are_a_400(data):
    async with running_server("x") as server:
        status, answer = await exchange(server.url, data)
        assert status == 400
        assert answer["error"]["type"] == "invalid_request_error"
        assert (await server.complete())["choices"][0]["text"] == "x"


@pytest.mark.parametrize(
    "data",
    [b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
     b"GET /health HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + b"a" * 100_000 + b"\r\n\r\n"],
    ids=["path", "header"],
)  # fmt: skip
async def test_long_path_or_header_is_a_431(data):
    async with running_server("x") as server:
        status, answer = await exchange(server.url, data)
        assert status == 431
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert len(json.dumps(answer)) < 500


@pytest.mark.parametrize("path", ["/health", "/v1/completions"])
@pytest.mark.parametrize(
    "rest", [b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\nno"]
)
async def test_body_that_can_not_be_read_is_no_error_in_the_log(path, rest, caplog):
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n".encode()
    async with running_server("x") as server:
        status, _ = await exchange(server.url, head + rest)
        assert 400 <= status < 500
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"TRACE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", 200),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 200),
        (b"POST /tokenize HTTP/1.1\r\nHost: \r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", 400),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"A%d: b\r\n" % i for i in range(2000)) + b"\r\n", 400),
        (b"GET /he\0alth HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /v1/models/\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET http://a:99999999/health HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /v1/models/%ED%A0%80 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: \xff\r\nCookie: \xff=;;\r\nRange: bytes=z\r\n\r\n", 200),
    ],
)  # fmt: skip
async def test_odd_requests_get_an_answer_in_openais_shape(data, status):
    async with running_server("x") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        writer.write(data)
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            assert int(head.split()[1]) == status
            if status != 200:
                error = json.loads(await reader.readuntil(b"}}"))["error"]
                assert error["type"] == "invalid_request_error"
        writer.close()
        assert (await server.complete())["choices"][0]["text"] == "x"


# ---- slow on purpose

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
QUICK = StreamTimes(head_timeout_s=0.1)


@pytest.mark.parametrize("data", [b"\r\n", b"GET /a", b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: "])
async def test_head_that_does_not_become_complete_is_a_408(data):
    async with running_server("x", times=QUICK) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        trickling = asyncio.create_task(_trickle(writer, data))
        async with asyncio.timeout(10):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        trickling.cancel()
        writer.close()
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"Connection: close" in head
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
        assert (await server.complete())["choices"][0]["text"] == "x"


async def _trickle(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send a little at a time, for ever: each byte alone is in time."""
    writer.write(data)
    while True:
        await asyncio.sleep(0.02)
        writer.write(b"a" if data != b"\r\n" else b"\r\n")


async def test_limit_of_heads_ends_neither_a_slow_body_nor_a_long_answer_nor_an_idle_connection():
    async with running_server("x", times=QUICK, num_steps=0) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        body = b'{"prompt": "p"}'
        for _ in range(2):
            server.core.allow_steps(0)
            writer.write(HEAD % len(body) + body[:5])
            await asyncio.sleep(0.2)
            writer.write(body[5:])
            await until(lambda: bool(server.core.running))
            await asyncio.sleep(0.2)
            server.core.allow_steps(None)
            answer = await reader.readuntil(b"}}}")
            assert answer.startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.2)
        writer.close()


async def test_reader_of_a_whole_answer_gets_time_by_its_size_and_no_more(monkeypatch):
    monkeypatch.setattr(http_protocol, "SLOWEST_READER_BYTES_PER_S", 400 * 2**20)
    num_bytes = 40 * 2**20  # more than any socket's buffers

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=b"x" * num_bytes)

    async with (
        running_server("a", times=StreamTimes(write_timeout_s=0.1)) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        app = http_server.create_app(server.serving, ServerConfig())
        app.router.add_get("/large", answer)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        await stack.enter_async_context(http_server.serve(app, [listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname(), limit=1024)
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        num_received = 0
        # It takes something all the time, and too little.
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(20):
                while chunk := await reader.read(10_000):
                    num_received += len(chunk)
                    await asyncio.sleep(0.001)
        assert 0 < num_received < num_bytes, "the server closed before the end"
        assert (await server.complete(max_tokens=1))["choices"][0]["text"] == "a"
        writer.close()
