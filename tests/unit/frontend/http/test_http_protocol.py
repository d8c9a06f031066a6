"""What is no HTTP, or too much of it, is answered in OpenAI's shape, and the connection is closed."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

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
async def test_body_that_can_not_be_decompressed_is_no_error_in_the_log(path, caplog):
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
    async with running_server("x") as server:
        status, _ = await exchange(server.url, head + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc")
        assert 400 <= status < 500
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
