from __future__ import annotations

import errno
import json
import ssl
from collections.abc import Awaitable, Callable
from itertools import count

import aiohttp
import pytest
from aiohttp import web
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.test_utils import TestServer

from pagewire.frontend.bench.dataset.datasets import SampleRequest
from pagewire.frontend.bench.serving.client import BenchClient, StreamBroken, StreamRecorder, describe_failure
from pagewire.frontend.bench.serving.config import BenchServeConfig
from pagewire.frontend.bench.serving.metrics import RequestOutcome

REQUEST = SampleRequest("p", 7, 16)


def line(**chunk: object) -> bytes:
    return f"data: {json.dumps(chunk)}\n".encode()


def text(value: str, finish_reason: str | None = None) -> bytes:
    return line(choices=[{"index": 0, "text": value, "finish_reason": finish_reason}])


def delta(finish_reason: str | None = None, **fields: str) -> bytes:
    return line(choices=[{"index": 0, "delta": fields, "finish_reason": finish_reason}])


def record(*lines: bytes) -> RequestOutcome:
    """The outcome of a request sent at 10 s whose lines came at 11 s, 12 s, ..."""
    recorder = StreamRecorder()
    for now_s, one in enumerate(lines, start=11):
        recorder.feed(one, float(now_s))
    return recorder.outcome(REQUEST, sent_s=10.0, start_s=3.0)


USAGE = line(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 5})
DONE = b"data: [DONE]\n"


def test_times_are_those_of_chunks_with_text():
    outcome = record(b": keep-alive\n", text("a"), b"\n", text("b"), text("", "stop"), USAGE, DONE)
    assert outcome == RequestOutcome(9, 3.0, 5, ttft_s=2.0, latency_s=4.0, itls_s=(2.0,), text="ab")


def test_the_chunk_that_names_the_assistant_is_no_token():
    outcome = record(delta(role="assistant", content=""), delta(content="a"), delta("stop"), DONE)
    assert (outcome.ttft_s, outcome.latency_s, outcome.itls_s) == (2.0, 2.0, ())


def test_reasoning_is_text_too():
    outcome = record(delta(role="assistant", content=""), delta(reasoning="r"), delta(content="a"), delta("stop"))
    assert (outcome.ttft_s, outcome.itls_s, outcome.text) == (2.0, (1.0,), "ra")


def test_a_token_without_text_counts():
    assert record(text(""), text("a"), text("", "length")).itls_s == (1.0,)


def test_text_that_comes_with_the_finish_reason_counts():
    assert record(text("a"), text("b", "length")).itls_s == (1.0,)


def test_an_answer_that_ends_at_once_has_its_end_as_first_token():
    outcome = record(text("", "stop"), line(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 1}), DONE)
    assert (outcome.ttft_s, outcome.num_output_tokens) == (1.0, 1)


def test_without_usage_chunks_are_counted():
    outcome = record(text("a"), text("b"), text("c", "length"), DONE)
    assert (outcome.num_prompt_tokens, outcome.num_output_tokens) == (7, 3)


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ([], "broke off"),
        ([text("a")], "broke off"),
        ([DONE], "without a token"),
        ([b"data: {\n"], "not OpenAI's"),
        ([line(choices=3)], "not OpenAI's"),
        ([text("a"), line(error={"message": "engine died"}), DONE], "engine died"),
    ],
)
def test_a_broken_stream_says_how(lines: list[bytes], part: str):
    with pytest.raises(StreamBroken, match=part):
        record(*lines)


async def measure(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], **options: object
) -> tuple[RequestOutcome, dict[str, object]]:
    """Send REQUEST to a server of one handler; return the outcome and the body that it got."""
    bodies: list[dict[str, object]] = []

    async def keep(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return await handler(request)

    app = web.Application()
    app.router.add_post("/{path:.*}", keep)
    ticks = count(100)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        config = BenchServeConfig(base_url=str(server.make_url("")), **options)  # type: ignore[arg-type]
        client = BenchClient(session, config, "m", lambda: float(next(ticks)))
        return await client.measure(REQUEST, began_s=90.0), bodies[0]


async def answer(_request: web.Request) -> web.Response:
    return web.Response(body=text("a") + b"\n" + text("b", "length") + b"\n" + USAGE + b"\n" + DONE + b"\n")


async def test_a_completion_is_asked_for_as_a_stream_with_usage():
    outcome, body = await measure(answer)
    assert body == {
        "model": "m", "prompt": "p", "max_tokens": 16, "temperature": 0.0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert (outcome.error, outcome.start_s, outcome.num_output_tokens) == ("", 10.0, 5)
    assert outcome.itls_s == (2.0,)  # the clock ticks once a line


async def test_a_chat_is_asked_for_in_its_own_form():
    _, body = await measure(answer, backend="openai-chat", ignore_eos=True)
    assert body["messages"] == [{"role": "user", "content": "p"}]
    assert body["max_completion_tokens"] == 16
    assert body["ignore_eos"] is True


async def test_an_http_error_is_an_outcome():
    async def refuse(_request: web.Request) -> web.Response:
        return web.Response(status=503, text="full\nup " + "x" * 1000)

    outcome, _ = await measure(refuse)
    assert outcome.error.startswith("HTTP 503: full up x")
    assert len(outcome.error) < 400
    assert (outcome.num_prompt_tokens, outcome.num_output_tokens) == (7, 0)


async def test_a_connection_that_breaks_is_an_outcome():
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = 1000
        await response.prepare(request)
        await response.write(text("a"))
        assert request.transport is not None
        request.transport.close()
        return response

    outcome, _ = await measure(break_off)
    assert "ClientPayloadError" in outcome.error


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 9)"), "Connection refused"),
        (OSError(-2, "Name or service not known"), "Name or service not known"),
        (OSError("Multiple exceptions: a, b"), "Multiple exceptions: a, b"),
        (
            ssl.SSLError(1, "[SSL] record layer failure"),
            "TLS fails, as it does where http:// is spoken: [SSL] record layer failure",
        ),
    ],
)
def test_failed_connection_is_described_by_its_cause(cause: OSError, text: str):
    key = ConnectionKey("host", 9, False, True, None, None, None)
    assert "ssl:default" in str(aiohttp.ClientConnectorError(key, cause))
    assert describe_failure(aiohttp.ClientConnectorError(key, cause)) == text


def test_certificate_that_does_not_fit_is_described_by_its_cause():
    key = ConnectionKey("host", 9, True, True, None, None, None)
    error = aiohttp.ClientConnectorCertificateError(key, ValueError("certificate has expired"))
    assert describe_failure(error) == "certificate has expired"
