"""A stream brings what the whole answer brings; failures reach its client before and within it."""

from __future__ import annotations

import socket

import aiohttp
import pytest
from aiohttp import AddrInfoType

from pagewire.ipc.errors import ExecutorDied
from pagewire.ipc.outputs import RequestEnd, StepOutputs
from pagewire.ipc.requests import AddRequest
from tests.support.fake_core import until
from tests.support.http_server import joined_text, message, parse_events, running_server

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


async def test_engine_error_before_acceptance_has_its_own_status():
    async with running_server(refuses=lambda request: ExecutorDied("The executor ended.")) as server:
        for stream in (False, True):
            status, answer = await server.post("/v1/completions", prompt="p", stream=stream)
            assert (status, answer["error"]["message"]) == (500, "The executor ended.")


async def test_failure_in_a_stream_is_an_event_before_done():
    async with running_server("a" * 50, num_steps=3) as server:
        async with server.http.post("/v1/completions", json={"prompt": "p", "stream": True, "n": 1}) as response:
            assert response.status == 200
            await until(lambda: server.core.num_steps_left == 0)
            request = await server.core.next(AddRequest)
            error = ExecutorDied("The executor ended.").to_info()
            await server.core.send(StepOutputs(ends=[RequestEnd(request_id=request.request_id, error=error)]))
            *_, last, done = parse_events(await response.text())
        assert done == "[DONE]"
        assert last == {
            "error": {
                "message": "The executor ended.",
                "type": "server_error",
                "param": None,
                "code": "engine_error",
            }
        }
        assert await server.metric("vllm:request_success_total", finished_reason="error") == 1


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("ď 🙂 서울 北京".encode(), "ď 🙂 서울 北京"),
        (b"ab\xc4", "ab" + REPLACEMENT),
        (b"ab\xf0\x9f\x99", "ab" + REPLACEMENT),
        (REPLACEMENT.encode(), REPLACEMENT),
        (b"\xff\xc4A\x80\xe4\xbd", REPLACEMENT * 2 + "A" + REPLACEMENT * 2),
    ],
    ids=["characters of several tokens", "half a character", "most of one", "a real replacement", "no UTF-8 at all"],
)
@pytest.mark.parametrize("end", ["end token", "length", "stop string"])
async def test_stream_and_whole_answer_have_the_same_text_and_count_however_they_end(output, text, end):
    options = {"max_tokens": len(output)} if end == "length" else {"max_tokens": 50}
    num_tokens = len(output) if end == "length" else len(output) + 1
    script = list(output)
    if end == "stop string":
        script += b"!?"
        options["stop"] = "!"
    async with running_server(script) as server:
        whole = await server.complete(**options)
        chunks = await server.stream_completion(**options, stream_options={"include_usage": True})
        assert joined_text(chunks) == whole["choices"][0]["text"] == text
        assert server.serving.tokenizer.decode(list(output)) == text
        if REPLACEMENT not in text:
            assert all(REPLACEMENT not in choice["text"] for chunk in chunks for choice in chunk["choices"])
        reason = "length" if end == "length" else "stop"
        assert whole["choices"][0]["finish_reason"] == chunks[-2]["choices"][0]["finish_reason"] == reason
        assert whole["usage"]["completion_tokens"] == chunks[-1]["usage"]["completion_tokens"] == num_tokens


async def test_answer_that_is_no_utf8_leaves_its_neighbours_and_the_server_alone():
    async with running_server([0xFF, 0xC4, 0xFF, 0xF0], "plain") as server:
        body = {"n": 2, "temperature": 1, "logprobs": 2}
        chunks = await server.stream_completion(**body)
        assert [joined_text(chunks, index) for index in range(2)] == [REPLACEMENT * 4, "plain"]
        choices = (await server.complete(**body))["choices"]
        assert [choice["text"] for choice in choices] == [REPLACEMENT * 4, "plain"]


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
async def test_reader_that_falls_behind_finds_its_tokens_merged_and_none_missing(path):
    text = "x" * 600
    body = {
        "prompt": "p",
        "max_tokens": 700,
        "logprobs": 20,
    }  # events of several kilobytes, which soon fill the socket's buffers
    if path == "chat/completions":
        body = {"messages": [message("hi")], "logprobs": True, "top_logprobs": 20}
    sockets: list[socket.socket] = []
    connector = aiohttp.TCPConnector(socket_factory=lambda address: _narrow_socket(address, sockets))
    async with (
        running_server(text, info={"max_model_len": 1000}) as server,
        aiohttp.ClientSession(server.url, connector=connector) as http,
        http.post(f"/v1/{path}", json={"stream": True, **body}, read_bufsize=1024) as response,
    ):
        await until(lambda: not server.core.running)
        # Through the narrow window, what the system holds would take half a minute.
        sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        *chunks, done = parse_events(await response.text())
    assert done == "[DONE]"
    assert joined_text(chunks) == text
    assert len(chunks) < len(text), "those that waited for the reader came together"


def _narrow_socket(address: AddrInfoType, made: list[socket.socket]) -> socket.socket:
    family, kind, protocol, *_ = address
    narrow = socket.socket(family, kind, protocol)
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.append(narrow)
    return narrow
