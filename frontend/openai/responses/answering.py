"""One response on its way: from the chat that answers it to the body, the events and what is stored of it."""

from __future__ import annotations

from typing import Any

import msgspec

from ...text.generation import TextChunk
from ..bodies.json_body import encode_json
from ..bodies.responses import ChatTokenLogprob
from ..chat_call import ChatCall
from ..errors import describe_error
from ..logprobs import ChatLogprobsWriter
from ..named_events import encode_events
from ..serving import Serving
from .answer import IncompleteDetails, ResponseFault, ResponseObject, ResponseStatus, response_usage
from .events import ResponseEvent
from .request import ReasoningConfig, ResponseRequest, TextConfig
from .store import JsonObject, ResponseStore, StoredResponse
from .transcript import Transcript


class Answering:
    """A response that is being made; it writes the events of a stream (see `EventWriter`) or the whole body.

    Args:
        serving: the served model.
        store: where it is kept, if the request wants it kept.
        body: what was asked.
        items: the whole input, earlier responses among it.
        chat: what answers it.
        response_id: made by the server: nobody else knows it.

    Attributes:
        response: as it is now.
        transcript: what its stream tells.
    """

    def __init__(
        self,
        serving: Serving,
        store: ResponseStore,
        body: ResponseRequest,
        items: list[JsonObject],
        chat: ChatCall,
        response_id: str,
    ) -> None:
        self._serving = serving
        self._store = store
        self._items = items
        self._chat = chat
        self._finish_reason = "abort"
        self._logprobs: ChatLogprobsWriter | None = None
        if chat.body.logprobs:
            self._logprobs = ChatLogprobsWriter(
                serving.tokenizer,
                num_top=chat.body.top_logprobs or 0,
                shows_special=not chat.params.skip_special_tokens,
            )
        self.response = ResponseObject(
            id=response_id,
            created_at=chat.created,
            status="in_progress",
            background=bool(body.background),
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            model=chat.model,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            prompt_cache_key=body.prompt_cache_key,
            reasoning=body.reasoning or ReasoningConfig(),
            safety_identifier=body.safety_identifier,
            store=body.store is not False and not store.is_off,
            temperature=chat.params.temperature,
            text=_written(body.text or TextConfig()),
            tool_choice=body.tool_choice or "auto",
            tools=body.tools or [],
            top_logprobs=body.top_logprobs or 0,
            top_p=chat.params.top_p,
            user=body.user,
        )
        self.transcript = Transcript(self.response)

    # ---- whole

    async def collect(self) -> ResponseObject:
        """Wait for the answer; return and store the response.

        Raises:
            PagewireError: why the chat failed.
        """
        [answer] = await self._chat.collect()
        self._finish_reason = answer.finish_reason
        self.transcript.push(answer.parts, self._write_logprobs(answer.logprobs))
        self._end()
        return self.response

    # ---- streamed

    async def follow(self) -> None:
        """Read the answer as a stream that nobody is sent, but that may be followed; store the response.

        Raises:
            PagewireError: why the chat failed.
        """
        await self._chat.call.collect(self._read)
        self._end()

    def opening(self) -> bytes:
        """Return the events that say that the response begins."""
        return encode_events(self.transcript.opening())

    def head(self, _prompt_index: int) -> bytes:
        """See `EventWriter`."""
        return b""

    def chunk(self, _prompt_index: int, chunk: TextChunk) -> bytes:
        """See `EventWriter`."""
        return encode_events(self._read(chunk))

    def ending(self) -> bytes:
        """Return the last events, and store the response."""
        return encode_events(self._end())

    def failure(self, error: Exception) -> bytes:
        """Return the events that say why the response failed, and store it so far."""
        return encode_events(self.fail(error))

    # ---- both

    def fail(self, error: Exception) -> list[ResponseEvent]:
        """Note and store why the response failed; return the events that say so."""
        described = describe_error(error)[1]
        events = self.transcript.cut()
        return [*events, self._set("failed", error=ResponseFault(code="server_error", message=described.message))]

    def save(self) -> StoredResponse | None:
        """Store the response as it is, if it is to be."""
        if not self.response.store:
            return None
        stored = StoredResponse(response=self.response, transcript=self.transcript, items_json=encode_json(self._items))
        self._store.put(stored)
        return stored

    def _read(self, chunk: TextChunk) -> list[ResponseEvent]:
        parts = self._chat.read(chunk)
        if chunk.finish_reason is not None:
            self._finish_reason = self._chat.finish_reason(chunk.index, chunk.finish_reason)
        return self.transcript.push(parts, self._write_logprobs(chunk.logprobs))

    def _end(self) -> list[ResponseEvent]:
        is_whole = self._finish_reason in ("stop", "tool_calls")
        events = self.transcript.finish("completed" if is_whole else "incomplete")
        if is_whole:
            last = self._set("completed", completed_at=int(self._serving.wall_clock()))
        elif self._finish_reason == "length":
            last = self._set("incomplete", incomplete_details=IncompleteDetails(reason="max_output_tokens"))
        else:
            last = self._set("incomplete")
        return [*events, last]

    def _set(self, status: ResponseStatus, **changes: Any) -> ResponseEvent:  # Any: fields of ResponseObject
        self.response = msgspec.structs.replace(
            self.response,
            status=status,
            output=self.transcript.items,
            usage=response_usage(self._chat.usage()),
            **changes,
        )
        event = self.transcript.end(self.response)
        self.save()
        return event

    def _write_logprobs(self, entries: list[Any]) -> list[ChatTokenLogprob]:  # Any: TokenLogprobs, as they came
        return [] if self._logprobs is None or not entries else self._logprobs.write(entries).content


def _written(text: TextConfig) -> JsonObject:
    """Return what was asked of the text, without what was not given."""
    text_format = msgspec.to_builtins(text.format)
    return {
        "format": {name: value for name, value in text_format.items() if value is not None},
        "verbosity": text.verbosity or "medium",
    }
