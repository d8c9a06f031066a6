"""Sending answers as they come, for both endpoints."""

from __future__ import annotations

import asyncio
from typing import Protocol

from aiohttp import web

from ..http.sse import EventStream, event
from ..text.generation import TextChunk
from .call import Call
from .errors import describe_error, encode_error, log_error
from .responses import Usage
from .serving import Serving, request_id


class ChunkWriter(Protocol):
    """Writes one endpoint's events."""

    def head(self, prompt_index: int) -> bytes:
        """Return the events before a prompt's first output (roles, the echoed prompt); called when that is there."""

    def chunk(self, prompt_index: int, chunk: TextChunk) -> bytes:
        """Return the events of a chunk; none while its text is held back."""

    def usage(self, usage: Usage) -> bytes:
        """Return the event with the whole call's usage."""


async def stream_answers(
    request: web.Request, serving: Serving, call: Call, writer: ChunkWriter, *, include_usage: bool
) -> web.StreamResponse:
    """Answer with a stream of events.

    Until the engine has accepted every prompt, errors are ordinary HTTP errors. From there on the status is 200 and
    they are an event, followed by `[DONE]`.

    Raises:
        PagewireError: the engine didn't accept a prompt.
        ConnectionError: the client is gone.
    """
    await call.accepted()
    async with EventStream(request, serving.times, {"X-Request-Id": request_id(request)}) as stream:
        try:
            await _send_all(stream, call, writer)
        except ConnectionError:
            raise
        except Exception as error:  # the boundary of a started answer: whatever it is, the client is told
            log_error(error, request_id(request))
            await stream.finish(event(encode_error(describe_error(error)[1])))
            # The call still has to see its failure, for the figures; the answer is complete.
            call.has_failed = True
        else:
            await stream.finish(writer.usage(call.usage()) if include_usage else b"")
    return stream.response


async def _send_all(stream: EventStream, call: Call, writer: ChunkWriter) -> None:
    if len(call.generations) == 1:
        await _send_one(stream, call, writer, 0)
        return
    try:
        async with asyncio.TaskGroup() as group:
            for prompt_index in range(len(call.generations)):
                group.create_task(_send_one(stream, call, writer, prompt_index))
    except ExceptionGroup as errors:
        # The first failure ended the others; a lost connection is told from a failed generation by its type.
        raise errors.exceptions[0] from None


async def _send_one(stream: EventStream, call: Call, writer: ChunkWriter, prompt_index: int) -> None:
    has_begun = False
    async for chunk in call.generations[prompt_index]:
        call.count(prompt_index, chunk)
        events = writer.chunk(prompt_index, chunk)
        if not has_begun:
            has_begun = True
            # Only now: the logprobs of an echoed prompt come with its first token.
            events = writer.head(prompt_index) + events
        if events:
            await stream.send(events)
