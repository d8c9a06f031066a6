"""What the server tells of each request, whoever it is told to; and whether that can be done at all."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import ModuleType
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from pagewire.ipc.errors import ConfigError
from pagewire.ipc.sampling_params import SamplingParams

from ..http.request_record import RequestRecord

_TRACES_PATH = "/v1/traces"


class HttpExchange(msgspec.Struct, kw_only=True):
    """An HTTP request and its answer.

    Attributes:
        route: its pattern.
        headers: what continues a trace: traceparent and tracestate, as far as they were sent.
        request_id: its label.
        status: of the answer, once there is one.
    """

    method: str
    route: str
    headers: dict[str, str]
    request_id: str = ""
    status: int | None = None


class GenerationTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt's generation or embedding that has ended.

    Attributes:
        request_id: its label.
        model: as it is told to the client.
        params: as asked for; None for an embedding.
        record: tokens and times.
        arrived_at_s: Unix time.
    """

    request_id: str
    model: str
    params: SamplingParams | None
    record: RequestRecord
    arrived_at_s: float


class Tracing(Protocol):
    """See the module."""

    def exchange(self, exchange: HttpExchange) -> AbstractContextManager[None]:
        """Trace an HTTP request while the context is open; generations that end in it are its parts."""
        ...

    def generation_done(self, trace: GenerationTrace) -> None:
        """Trace a generation."""
        ...

    async def aclose(self) -> None:
        """Send what was not sent yet, for a few seconds at most."""
        ...


def open_tracing(endpoint: str) -> Tracing:
    """Return what sends traces to a collector.

    Args:
        endpoint: its address for OTLP over HTTP, http://host:4318 or with a path.

    Raises:
        ConfigError: it is no address, or OpenTelemetry's packages are missing.
    """
    url = _traces_url(endpoint)
    exporter = _exporter()
    tracing: Tracing = exporter.OpenTelemetryTracing(exporter.http_exporter(url))
    return tracing


def check_tracing(endpoint: str | None) -> None:
    """Find out before an engine is started whether traces can be sent.

    Raises:
        ConfigError: as `open_tracing`.
    """
    if endpoint is not None:
        _traces_url(endpoint)
        _exporter()


def _exporter() -> ModuleType:
    try:
        from . import exporter
    except ImportError as exc:
        raise ConfigError(
            f"--otlp-traces-endpoint needs OpenTelemetry ({exc.name} is missing): pip install 'pagewire[otel]'."
        ) from exc
    return exporter


def _traces_url(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"--otlp-traces-endpoint {endpoint} must be the collector's address for OTLP over HTTP, like "
            "http://127.0.0.1:4318/v1/traces."
        )
    return endpoint if parts.path not in ("", "/") else f"{parts.scheme}://{parts.netloc}{_TRACES_PATH}"
