"""POST /v1/messages and POST /v1/messages/count_tokens."""

from __future__ import annotations

import uuid

from aiohttp import web

from ..openai.bodies.json_body import JsonBody, json_response
from ..openai.chat_call import ChatCall, start_chat
from ..openai.messages import render_messages
from ..openai.named_events import encode_events
from ..openai.serving import SERVING, request_id
from ..openai.streaming import stream_events
from ..text.generation import TextChunk
from .answer import (
    MessageDelta,
    MessageEnd,
    MessageObject,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    StopReason,
    TokenCount,
)
from .conversation import chat_request
from .errors import describe_for_anthropic
from .output import MessageOutput
from .request import CountTokensRequest, MessageRequest

_BODY = JsonBody(MessageRequest)
_COUNT_BODY = JsonBody(CountTokensRequest)


async def create_message(request: web.Request) -> web.StreamResponse:
    """Answer a conversation, streamed or whole."""
    serving = request.app[SERVING]
    body = await _BODY.read(request)
    async with start_chat(serving, request, chat_request(body), f"msg_{uuid.uuid4().hex}") as chat:
        writer = _MessageWriter(chat)
        if body.stream:
            return await stream_events(
                request,
                serving,
                chat.call,
                writer,
                ending=writer.ending,
                failure=lambda error: encode_events([describe_for_anthropic(error, request_id(request))]),
            )
        return json_response(await writer.collect(), request_id(request))


async def count_tokens(request: web.Request) -> web.Response:
    """Return how many tokens a conversation takes, with its tools and all that the chat template writes."""
    serving = request.app[SERVING]
    chat = chat_request(await _COUNT_BODY.read(request))
    serving.check_model(chat.model)
    text = await render_messages(serving.chats, chat)
    token_ids = await serving.encode_prompt(text, add_special_tokens=False)
    return json_response(TokenCount(input_tokens=len(token_ids)), request_id(request))


class _MessageWriter:
    """Writes one message, whole or as events (see `EventWriter`)."""

    def __init__(self, chat: ChatCall) -> None:
        self._chat = chat
        self._output = MessageOutput()
        self._end = MessageEnd(stop_reason="end_turn")

    async def collect(self) -> MessageObject:
        """Return the whole message.

        Raises:
            PagewireError: why the chat failed.
        """
        [answer] = await self._chat.collect()
        self._output.push(answer.parts)
        self._output.finish()
        self._note_end(answer.finish_reason, answer.stop_reason)
        return self._message(self._end)

    def head(self, _prompt_index: int) -> bytes:
        """See `EventWriter`."""
        return encode_events([MessageStart(message=self._message(None)), Ping()])

    def chunk(self, _prompt_index: int, chunk: TextChunk) -> bytes:
        """See `EventWriter`."""
        events = self._output.push(self._chat.read(chunk))
        if chunk.finish_reason is not None:
            events += self._output.finish()
            self._note_end(self._chat.finish_reason(chunk.index, chunk.finish_reason), chunk.stop_reason)
        return encode_events(events)

    def ending(self) -> bytes:
        """Return the last events."""
        return encode_events([MessageDelta(delta=self._end, usage=self._usage()), MessageStop()])

    def _note_end(self, finish_reason: str, stop_reason: str | int | None) -> None:
        reason: StopReason = "end_turn"
        sequence: str | None = None
        if finish_reason == "length":
            reason = "max_tokens"
        elif finish_reason == "abort":
            reason = "pause_turn"
        elif self._output.has_calls:
            reason = "tool_use"
        elif isinstance(stop_reason, str):
            reason, sequence = "stop_sequence", stop_reason
        self._end = MessageEnd(stop_reason=reason, stop_sequence=sequence)

    def _message(self, end: MessageEnd | None) -> MessageObject:
        return MessageObject(
            id=self._chat.label,
            model=self._chat.model,
            content=[] if end is None else self._output.blocks,
            stop_reason=None if end is None else end.stop_reason,
            stop_sequence=None if end is None else end.stop_sequence,
            usage=self._usage(),
        )

    def _usage(self) -> MessageUsage:
        usage = self._chat.usage()
        num_cached = usage.prompt_tokens_details.cached_tokens
        return MessageUsage(
            input_tokens=usage.prompt_tokens - num_cached,
            cache_read_input_tokens=num_cached,
            output_tokens=usage.completion_tokens,
        )
