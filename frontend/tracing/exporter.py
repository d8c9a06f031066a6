"""Traces by OpenTelemetry: a span for the HTTP request, one for each generation or embedding, its parts below that.

The attributes of generations bear vLLM's names, so that its dashboards of traces find them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pagewire.version import __version__

from .tracing import GenerationTrace, HttpExchange

_SERVICE = "pagewire"
_SEND_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 5.0
_NS = 1_000_000_000

Attributes = dict[str, str | int | float | list[str]]


def http_exporter(url: str) -> SpanProcessor:
    """Return what sends spans to a collector, in a thread of its own; what it can't send for long is dropped."""
    return BatchSpanProcessor(OTLPSpanExporter(endpoint=url, timeout=_SEND_TIMEOUT_S))


class OpenTelemetryTracing:
    """See `Tracing`.

    Args:
        processor: where spans go.
    """

    def __init__(self, processor: SpanProcessor) -> None:
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, which every OpenTelemetry service knows, win.
        resource = Resource.create({SERVICE_NAME: _SERVICE}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(_SERVICE, __version__)
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def exchange(self, exchange: HttpExchange) -> Iterator[None]:
        """See `Tracing`."""
        attributes = {
            "http.request.method": exchange.method,
            "http.route": exchange.route,
        }
        with self._tracer.start_as_current_span(
            f"{exchange.method} {exchange.route}",
            context=self._propagator.extract(exchange.headers),
            kind=SpanKind.SERVER,
            attributes=attributes,
        ) as span:
            try:
                yield
            finally:
                span.set_attribute("gen_ai.request.id", exchange.request_id)
                if exchange.status is not None:
                    span.set_attribute("http.response.status_code", exchange.status)
                    if exchange.status >= 500:
                        span.set_status(Status(StatusCode.ERROR))

    def generation_done(self, trace_: GenerationTrace) -> None:
        """See `Tracing`."""
        record = trace_.record

        def at_ns(since_arrival_s: float) -> int:
            return int((trace_.arrived_at_s + since_arrival_s) * _NS)

        span = self._tracer.start_span("llm_request", attributes=_attributes(trace_), start_time=at_ns(0.0))
        if "error" in record.finish_reasons:
            span.set_status(Status(StatusCode.ERROR))
        within = trace.set_span_in_context(span)
        borders = (("queue", 0.0, record.queue_s), ("prefill", record.queue_s, record.first_token_s),
                   ("decode", record.first_token_s, record.last_token_s))  # fmt: skip
        for name, begin_s, end_s in borders if trace_.params is not None else ():  # an embedding tells of none
            if begin_s is not None and end_s is not None:
                part = self._tracer.start_span(name, context=within, start_time=at_ns(begin_s))
                part.end(at_ns(max(begin_s, end_s)))
        span.end(at_ns(record.e2e_s))

    async def aclose(self) -> None:
        """See `Tracing`."""
        # A daemon, since a collector that does not answer must not hold the end of the process.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, _CLOSE_TIMEOUT_S)


def _attributes(trace_: GenerationTrace) -> Attributes:
    record, params = trace_.record, trace_.params
    attributes: Attributes = {
        "gen_ai.response.model": trace_.model,
        "gen_ai.request.id": trace_.request_id,
        "gen_ai.usage.num_sequences": record.n,
        "gen_ai.usage.prompt_tokens": record.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": record.num_output_tokens,
        "gen_ai.usage.cached_tokens": record.num_cached_tokens,
        "gen_ai.response.finish_reasons": list(record.finish_reasons),
        "gen_ai.latency.e2e": record.e2e_s,
    }
    if params is not None:
        attributes["gen_ai.request.temperature"] = params.temperature
        attributes["gen_ai.request.top_p"] = params.top_p
        attributes["gen_ai.request.n"] = params.n
    if record.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = record.max_tokens
    queue_s, first_s, last_s = record.queue_s, record.first_token_s, record.last_token_s
    if queue_s is not None:
        attributes["gen_ai.latency.time_in_queue"] = queue_s
    if first_s is not None:
        attributes["gen_ai.latency.time_to_first_token"] = first_s
    if queue_s is not None and first_s is not None and last_s is not None:
        attributes["gen_ai.latency.time_in_model_prefill"] = max(first_s - queue_s, 0.0)
        attributes["gen_ai.latency.time_in_model_decode"] = last_s - first_s
        attributes["gen_ai.latency.time_in_model_inference"] = max(last_s - queue_s, 0.0)
    return attributes
