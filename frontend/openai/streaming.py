"""Sending answers as they come, for every endpoint that streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from aiohttp import web

from ..http.sse import DONE, EventStream, event
from ..text.generation import TextChunk
from .bodies.responses import Usage
from .call import Call
from .errors import describe_error, encode_error, log_error
from .grouped_chunks import GroupedChunks
from .serving import Serving, request_id


class EventWriter(Protocol):
    """Writes one endpoint's events."""

    def head(self, prompt_index: int) -> bytes:
        """Return the events before a prompt's first output (roles, the echoed prompt); called when that is there."""

    def chunk(self, prompt_index: int, chunk: TextChunk) -> bytes:
        """Return the events of a chunk; none while its text is held back."""


class ChunkWriter(EventWriter, Protocol):
    """Writes the events of completions and chat completions."""

    def usage(self, usage: Usage) -> bytes:
        """Return the event with the whole call's usage."""


async def stream_answers(
    request: web.Request, serving: Serving, call: Call, writer: ChunkWriter, *, include_usage: bool
) -> web.StreamResponse:
    """Answer as completions do: the last event is `[DONE]`, an error is one before it; otherwise as `stream_events`."""
    return await stream_events(
        request,
        serving,
        call,
        writer,
        ending=lambda: (writer.usage(call.usage()) if include_usage else b"") + DONE,
        failure=lambda error: event(encode_error(describe_error(error)[1])) + DONE,
    )


async def stream_events(
    request: web.Request,
    serving: Serving,
    call: Call,
    writer: EventWriter,
    *,
    opening: bytes = b"",
    ending: Callable[[], bytes],
    failure: Callable[[Exception], bytes],
) -> web.StreamResponse:
    """Answer with a stream of events.

    Until the engine has accepted every prompt, errors are ordinary HTTP errors. From there on the status is 200 and
    they are events. A call with a deadline waits a little longer, for its first output, so that time that ran out
    before it is a 504: but not so long that a proxy would take the silence for an end.

    Args:
        request: what is answered.
        serving: the served model.
        call: its generations.
        writer: writes what comes of them.
        opening: events that are sent at once.
        ending: returns the last events, once all generations have ended.
        failure: returns them if one of them failed.

    Raises:
        PagewireError: the engine didn't accept a prompt, or failed it soon.
        ConnectionError: the client is gone.
    """
    await call.accepted()
    if call.has_deadline:
        await call.begun(serving.times.keep_alive_s)
    async with EventStream(request, serving.times, {"X-Request-Id": request_id(request)}) as stream:
        try:
            if opening:
                await stream.send(opening)
            await _send_all(stream, call, writer)
        except ConnectionError:
            raise
        except Exception as error:  # the boundary of a started answer: whatever it is, the client is told
            log_error(error, request_id(request))
            await stream.finish(failure(error))
            # The call still has to see its failure, for the figures; the answer is complete.
            call.has_failed = True
        else:
            await stream.finish(ending())
    return stream.response


async def _send_all(stream: EventStream, call: Call, writer: EventWriter) -> None:
    if len(call.generations) == 1:
        await _Forwarding(stream, call, writer, 0).run()
        return
    try:
        async with asyncio.TaskGroup() as group:
            for prompt_index in range(len(call.generations)):
                group.create_task(_Forwarding(stream, call, writer, prompt_index).run())
    except ExceptionGroup as errors:
        # The first failure ended the others; a lost connection is told from a failed generation by its type.
        raise errors.exceptions[0] from None


class _Forwarding:
    """One prompt's chunks on their way to the client.

    Tokens are written where they arrive, called by the receiver of the core's messages. The task of the handler wakes
    up only when something else is to be done: the client lags behind, an error has to be raised, or it is the end.
    """

    def __init__(self, stream: EventStream, call: Call, writer: EventWriter, prompt_index: int) -> None:
        self._stream = stream
        self._call = call
        self._writer = writer
        self._prompt_index = prompt_index
        self._generation = call.generations[prompt_index]
        self._grouped = GroupedChunks(call.stream_interval)
        self._has_begun = False
        self._is_blocked = False
        self._error: Exception | None = None
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Forward until the generation's end.

        Raises:
            PagewireError: the generation failed.
            ConnectionError: the client is gone.
        """
        self._generation.listen(self._on_change)
        try:
            while True:
                self._on_change(self._generation.has_ended)
                await self._wake.wait()
                self._wake.clear()
                if self._error is not None:
                    raise self._error
                if not self._is_blocked:
                    self._generation.raise_error()
                    return
                await self._stream.drain()
                self._is_blocked = False
        finally:
            self._generation.listen(None)

    def _on_change(self, has_ended: bool) -> None:
        if self._is_blocked or self._error is not None:
            return
        try:
            self._forward()
        except Exception as error:  # whatever it is, it is this answer's: others' tokens are in the same message
            self._error = error
        if has_ended or self._is_blocked or self._error is not None:
            self._wake.set()

    def _forward(self) -> None:
        while not self._is_blocked and (chunk := self._generation.take()) is not None:
            self._call.count(self._prompt_index, chunk)
            grouped = self._grouped.add(chunk)
            if grouped is None:
                continue
            chunk = grouped
            events = self._writer.chunk(self._prompt_index, chunk)
            if not self._has_begun:
                self._has_begun = True
                # Only now: the logprobs of an echoed prompt come with its first token.
                events = self._writer.head(self._prompt_index) + events
            if events:
                self._is_blocked = not self._stream.write(events)
