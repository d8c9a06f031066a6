"""Traces: a request's spans hang together, continue the caller's, bear vLLM's names, and reach a collector."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

pytest.importorskip("opentelemetry.sdk", reason="the extra pagewire[otel] is not installed")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pagewire.frontend.tracing import exporter as exporter_module
from pagewire.frontend.tracing import tracing as tracing_module
from pagewire.frontend.tracing.exporter import OpenTelemetryTracing
from pagewire.frontend.tracing.tracing import check_tracing, open_tracing
from pagewire.ipc.errors import ConfigError
from tests.support.http_server import Running, running_server

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}


@asynccontextmanager
async def traced(**options: object) -> AsyncIterator[tuple[Running, InMemorySpanExporter]]:
    spans = InMemorySpanExporter()
    tracing = OpenTelemetryTracing(SimpleSpanProcessor(spans))
    async with running_server("hello", tracing=tracing, **options) as server:
        yield server, spans


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


async def test_a_request_is_one_tree_below_the_callers_span():
    async with traced() as (server, exporter):
        async with server.http.post(
            "/v1/completions", json={"prompt": "pp", "max_tokens": 5}, headers=PARENT
        ) as answer:
            assert answer.status == 200
            request_id = answer.headers["X-Request-Id"]
        spans = by_name(exporter)
    assert set(spans) == {"POST /v1/completions", "llm_request", "queue", "prefill", "decode"}
    outer, request = spans["POST /v1/completions"], spans["llm_request"]
    assert outer.parent is not None
    assert f"{outer.parent.span_id:016x}" == "b7ad6b7169203331"
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {TRACE_ID}
    assert request.parent.span_id == outer.context.span_id
    assert all(spans[name].parent.span_id == request.context.span_id for name in ("queue", "prefill", "decode"))
    assert request.start_time <= spans["queue"].start_time <= spans["queue"].end_time == spans["prefill"].start_time
    assert spans["prefill"].end_time == spans["decode"].start_time <= spans["decode"].end_time <= request.end_time
    attributes = request.attributes
    assert attributes["gen_ai.usage.prompt_tokens"] == 2
    assert attributes["gen_ai.usage.completion_tokens"] == 5
    assert attributes["gen_ai.request.max_tokens"] == 5
    assert attributes["gen_ai.response.model"] == "fake"
    assert attributes["gen_ai.request.id"] == f"cmpl-{request_id}"
    assert outer.attributes["gen_ai.request.id"] == request_id
    assert attributes["gen_ai.latency.e2e"] >= attributes["gen_ai.latency.time_to_first_token"] > 0
    assert outer.attributes["http.response.status_code"] == 200


async def test_streams_and_errors_are_traced_and_probes_are_not():
    async with traced() as (server, exporter):
        await server.stream_chat()
        for path in ("/health", "/metrics"):
            async with server.http.get(path) as answer:
                assert answer.status == 200
        await server.post("/v1/completions", prompt=[])
        names = [span.name for span in exporter.get_finished_spans()]
        assert names.count("llm_request") == 1
        assert [name for name in names if " " in name] == ["POST /v1/chat/completions", "POST /v1/completions"]
        assert exporter.get_finished_spans()[-1].attributes["http.response.status_code"] == 400


async def test_each_prompt_that_is_embedded_has_a_span():
    async with traced() as (server, exporter):
        status, _ = await server.post("/v1/embeddings", input=["one", "three"])
        assert status == 200
        *requests, outer = exporter.get_finished_spans()
    assert outer.name == "POST /v1/embeddings"
    assert {span.name for span in requests} == {"llm_request"}
    assert sorted(span.attributes["gen_ai.usage.prompt_tokens"] for span in requests) == [3, 5]
    for span in requests:
        assert span.parent.span_id == outer.context.span_id
        assert span.attributes["gen_ai.response.finish_reasons"] == ("stop",)
        assert "gen_ai.request.temperature" not in span.attributes
        assert span.start_time <= span.end_time


async def test_spans_reach_a_collector_over_http(monkeypatch: pytest.MonkeyPatch):
    for limit in ("_SEND_TIMEOUT_S", "_CLOSE_TIMEOUT_S"):  # a busy machine may take longer
        monkeypatch.setattr(exporter_module, limit, 60.0)
    received: list[str] = []

    async def take(request: web.Request) -> web.Response:
        import gzip

        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        message = ExportTraceServiceRequest.FromString(body)
        [resource] = message.resource_spans
        assert {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}[
            "service.name"
        ] == "pagewire"
        received.extend(span.name for scope in resource.scope_spans for span in scope.spans)
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        tracing = open_tracing(f"http://127.0.0.1:{runner.addresses[0][1]}")
        async with running_server("hello", tracing=tracing) as server:
            await server.complete()
        await tracing.aclose()
    finally:
        await runner.cleanup()
    assert "llm_request" in received


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://x/", "http://"])
def test_what_is_no_address_is_refused(endpoint: str):
    with pytest.raises(ConfigError, match="OTLP over HTTP"):
        check_tracing(endpoint)


def test_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "pagewire.frontend.tracing.exporter")
    monkeypatch.delattr(sys.modules["pagewire.frontend.tracing"], "exporter")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ConfigError, match=r"pagewire\[otel\]"):
        tracing_module.check_tracing("http://127.0.0.1:4318")
    check_tracing(None)
