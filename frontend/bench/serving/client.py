"""One request of a benchmark: its body, its stream, its times."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec

from ..dataset.datasets import SampleRequest
from .config import BenchServeConfig
from .metrics import RequestOutcome

_MAX_ERROR_CHARACTERS = 300
_DATA, _DONE = b"data:", b"[DONE]"


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None  # Any: each server has its own form, and it is only shown


_chunks = msgspec.json.Decoder(_Chunk)


class StreamBroken(Exception):
    """A stream brought an error, no token, something else than a stream, or no end. The text says which."""


class StreamRecorder:
    """Takes a stream's lines with the times they came at; knows nothing of sockets and clocks.

    A chunk counts as a token's arrival if it has text, or none but no other purpose either: the chunk that only names
    the assistant and the one that only brings the finish reason would make up latencies that no reader sees.
    """

    def __init__(self) -> None:
        self._times_s: list[float] = []
        self._texts: list[str] = []
        self._usage: _Usage | None = None
        self._is_finished = False

    def feed(self, line: bytes, now_s: float) -> None:
        """Take one line of the body.

        Raises:
            StreamBroken: it is an error, or not what a stream holds.
        """
        if not line.startswith(_DATA):
            return  # a comment that keeps the connection alive, or the empty line after an event
        data = line.removeprefix(_DATA).strip()
        if data == _DONE:
            self._is_finished = True
            return
        try:
            chunk = _chunks.decode(data)
        except msgspec.DecodeError as exc:
            raise StreamBroken(f"the stream is not OpenAI's: {exc}") from exc
        if chunk.error is not None:
            raise StreamBroken(f"error in the stream: {_shown(msgspec.json.encode(chunk.error).decode())}")
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices:
            self._take(choice, now_s)

    def _take(self, choice: _Choice, now_s: float) -> None:
        delta = choice.delta or _Delta()
        text = choice.text or delta.content or delta.reasoning or delta.reasoning_content or ""
        is_last = bool(choice.finish_reason)  # some servers send an empty one in every chunk
        self._is_finished = self._is_finished or is_last
        # An answer that ends before any text has only its end to show for a first token.
        is_only_end = is_last and bool(self._times_s)
        is_only_role = delta.role is not None and not is_last
        if text or not (is_only_end or is_only_role):
            self._times_s.append(now_s)
            self._texts.append(text)

    def outcome(self, request: SampleRequest, *, sent_s: float, start_s: float) -> RequestOutcome:
        """Return what was measured, once the body has ended.

        Args:
            request: what was sent.
            sent_s: when, on the clock of `feed`.
            start_s: the same time since the start of the benchmark.

        Raises:
            StreamBroken: it brought no token, or broke off.
        """
        if not self._is_finished:
            raise StreamBroken("the stream broke off before its end, or the answer is no stream")
        if not self._times_s:
            raise StreamBroken("the stream ended without a token")
        usage = self._usage or _Usage()
        return RequestOutcome(
            num_prompt_tokens=usage.prompt_tokens or request.num_prompt_tokens,
            num_output_tokens=usage.completion_tokens if self._usage is not None else len(self._times_s),
            start_s=start_s,
            ttft_s=self._times_s[0] - sent_s,
            latency_s=self._times_s[-1] - sent_s,
            itls_s=tuple(b - a for a, b in zip(self._times_s, self._times_s[1:], strict=False)),
            text="".join(self._texts),
        )


class BenchClient:
    """Sends requests to one server and measures their streams.

    Args:
        session: carries the key, if one is needed.
        config: where to and in which form.
        model: the name to ask for.
        clock: in seconds; only differences count.
    """

    def __init__(
        self, session: aiohttp.ClientSession, config: BenchServeConfig, model: str, clock: Callable[[], float]
    ) -> None:
        self._session = session
        self._config = config
        self._model = model
        self._clock = clock

    async def measure(self, request: SampleRequest, *, began_s: float) -> RequestOutcome:
        """Send a request and return its outcome; a failure is an outcome too.

        Args:
            request: what to send.
            began_s: when the benchmark began, on the client's clock.
        """
        sent_s = self._clock()
        try:
            recorder = await self._stream(self._body(request))
            return recorder.outcome(request, sent_s=sent_s, start_s=sent_s - began_s)
        except StreamBroken as exc:
            error = str(exc)
        except (aiohttp.ClientError, OSError, ValueError) as exc:  # ValueError: aiohttp's word for an endless line
            error = f"{type(exc).__name__}: {_shown(describe_failure(exc))}"
        return RequestOutcome(num_prompt_tokens=request.num_prompt_tokens, start_s=sent_s - began_s, error=error)

    async def _stream(self, body: bytes) -> StreamRecorder:
        recorder = StreamRecorder()
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._config.request_url, data=body, headers=headers) as response:
            if response.status != 200:
                raise StreamBroken(f"HTTP {response.status}: {_shown(await response.text(errors='replace'))}")
            async for line in response.content:
                recorder.feed(line, self._clock())
        return recorder

    def _body(self, request: SampleRequest) -> bytes:
        if self._config.is_chat:
            specific: dict[str, object] = {
                "messages": [{"role": "user", "content": request.prompt}],
                "max_completion_tokens": request.num_output_tokens,
            }
        else:
            specific = {"prompt": request.prompt, "max_tokens": request.num_output_tokens}
        optional = {"ignore_eos": True} if self._config.ignore_eos else {}
        return msgspec.json.encode(
            {
                "model": self._model,
                **specific,
                "temperature": self._config.temperature,
                "stream": True,
                "stream_options": {"include_usage": True},
                **optional,
            }
        )


def describe_failure(error: Exception) -> str:
    """Return why a request failed, without aiohttp's notes on its own settings ("ssl:default")."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)
    if not isinstance(error, aiohttp.ClientConnectorError):
        return str(error)
    cause = error.os_error
    if isinstance(cause, ssl.SSLError):  # its number is none of the system's
        return f"TLS fails, as it does where http:// is spoken: {cause.strerror}"
    if cause.errno is not None and cause.errno > 0:
        return os.strerror(cause.errno)
    return cause.strerror or str(cause)  # the resolver's numbers are below zero


def _shown(text: str) -> str:
    """Return a text on one line, cut."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_ERROR_CHARACTERS else line[:_MAX_ERROR_CHARACTERS] + "..."
