"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from aiohttp import web
from msgspec import UNSET, UnsetType

from ..answers.parts import AnswerPart, ReasoningPart, TextPart, ToolCallPart
from ..http.sse import event
from ..text.generation import TextChunk
from .bodies.json_body import JsonBody, encode_json, json_response
from .bodies.responses import (
    AnswerFunction,
    AnswerMessage,
    AnswerToolCall,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatResponse,
    FunctionDelta,
    ToolCallDelta,
    Usage,
)
from .bodies.schema import ChatRequest
from .chat_call import ChatAnswer, ChatCall, start_chat
from .event_template import EventTemplate
from .functions import delta_in_kind, message_in_kind
from .logprobs import ChatLogprobsWriter, write_prompt_logprobs
from .params import check_stream_options
from .serving import SERVING, Serving, request_id, request_label
from .streaming import stream_answers

_BODY = JsonBody(ChatRequest)


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """Answer a chat, streamed or whole."""
    serving = request.app[SERVING]
    body = await _BODY.read(request)
    include_usage, continuous_usage = check_stream_options(body, forces_usage=serving.forces_usage)
    async with start_chat(serving, request, body, "chatcmpl-" + request_label(request, body)) as chat:
        answer = _ChatAnswer(serving, chat)
        if body.stream:
            writer = _ChatChunkWriter(answer, include_usage=include_usage, continuous_usage=continuous_usage)
            return await stream_answers(request, serving, chat.call, writer, include_usage=include_usage)
        return json_response(answer.whole(await chat.collect()), request_id(request))


async def whole_answer(serving: Serving, chat: ChatCall) -> ChatResponse:
    """Return the answer of a chat that is not streamed, once it is whole.

    Raises:
        PagewireError: why the chat failed.
    """
    return _ChatAnswer(serving, chat).whole(await chat.collect())


class _ChatAnswer:
    """What all parts of one answer have in common."""

    def __init__(self, serving: Serving, chat: ChatCall) -> None:
        self.chat = chat
        self.body = chat.body
        self.tokenizer = serving.tokenizer
        self.role = serving.response_role
        self.logprobs: ChatLogprobsWriter | None = None
        if self.body.logprobs:
            self.logprobs = ChatLogprobsWriter(
                serving.tokenizer,
                num_top=self.body.top_logprobs or 0,
                shows_special=not chat.params.skip_special_tokens,
                as_ids=serving.names_tokens_by_id(self.body),
            )

    def whole(self, answers: Sequence[ChatAnswer]) -> ChatResponse:
        """Return the answer that is not streamed."""
        generation = self.chat.call.generations[0]
        return ChatResponse(
            id=self.chat.label,
            created=self.chat.created,
            model=self.chat.model,
            choices=[self._choice(index, answer) for index, answer in enumerate(answers)],
            service_tier="default" if self.body.service_tier else None,  # there is one
            usage=self.chat.usage(),
            prompt_logprobs=UNSET
            if self.body.prompt_logprobs is None
            else write_prompt_logprobs(self.tokenizer, generation.prompt_token_ids, generation.prompt_logprobs or []),
            prompt_token_ids=generation.prompt_token_ids if self.body.return_token_ids else UNSET,
            prompt_text=self.prompt_text,
        )

    @property
    def echoed(self) -> str:
        """What `echo` repeats in front of each answer: a last message of the answer's own role."""
        last = self.body.messages[-1]
        if not self.body.echo or last.role != self.role or last.content is None:
            return ""
        if isinstance(last.content, str):
            return last.content
        return "".join(part if isinstance(part, str) else part.get("text", "") for part in last.content)

    @property
    def prompt_text(self) -> str | UnsetType:
        """The prompt as the template wrote it, if it was asked for."""
        return (self.chat.call.generations[0].prompt or "") if self.body.return_prompt_text else UNSET

    def _choice(self, index: int, answer: ChatAnswer) -> ChatChoice:
        text = self.echoed + answer.text
        calls = [
            AnswerToolCall(id=call.id or "", function=AnswerFunction(name=call.name or "", arguments=call.arguments))
            for call in answer.calls
        ]
        reasoning = answer.reasoning or UNSET
        message = AnswerMessage(
            role=self.role,
            content=text if text or not calls else None,
            reasoning=reasoning,
            reasoning_content=reasoning,
            tool_calls=calls or UNSET,
        )
        return ChatChoice(
            index=index,
            message=message_in_kind(message) if self.chat.answers_in_functions else message,
            logprobs=None if self.logprobs is None else self.logprobs.write(answer.logprobs),
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
            token_ids=answer.token_ids if self.body.return_token_ids else UNSET,
        )


class _ChatChunkWriter:
    """Writes the events of a chat stream: a role for each choice, text, and an empty delta with the finish reason."""

    def __init__(self, answer: _ChatAnswer, *, include_usage: bool, continuous_usage: bool) -> None:
        self._answer = answer
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._returns_ids = bool(answer.body.return_token_ids)
        self._templates: dict[int, EventTemplate] = {}
        self._is_plain = answer.chat.plan.is_plain
        self._sends_text_alone = answer.logprobs is None and not continuous_usage and not self._returns_ids

    def head(self, prompt_index: int) -> bytes:
        """See `ChunkWriter`."""
        call = self._answer.chat.call
        prompt_token_ids = call.generations[prompt_index].prompt_token_ids if self._returns_ids else UNSET
        role = ChatDelta(role=self._answer.role, content="")
        prompt_text, echoed = self._answer.prompt_text, self._answer.echoed
        events = [
            self._event(ChatChunkChoice(index=index, delta=role), prompt_token_ids, prompt_text)
            for index in range(call.n)
        ]
        if echoed:
            events += [self._text_event(index, echoed) for index in range(call.n)]
        return b"".join(events)

    def chunk(self, prompt_index: int, chunk: TextChunk) -> bytes:
        """See `ChunkWriter`."""
        chat = self._answer.chat
        sends_parts_alone = self._sends_text_alone and chunk.finish_reason is None
        if sends_parts_alone and self._is_plain:  # nearly always
            return self._text_event(chunk.index, chunk.text) if chunk.text else b""
        parts = chat.read(chunk)
        if sends_parts_alone:
            return b"".join([self._part_event(chunk.index, part) for part in parts])
        return self._annotated_events(chunk, parts) + self._finish_event(chunk)

    def _annotated_events(self, chunk: TextChunk, parts: Sequence[AnswerPart]) -> bytes:
        """Return the events of a chunk's parts; its logprobs and token ids go with the first of them."""
        logprobs: ChatLogprobs | None = None
        if self._answer.logprobs is not None and chunk.logprobs:
            logprobs = self._answer.logprobs.write(chunk.logprobs)
        deltas = [self._delta(part) for part in parts]
        if not deltas and (logprobs is not None or (self._returns_ids and chunk.token_ids)):
            deltas = [ChatDelta(content="")]
        events = b""
        for number, delta in enumerate(deltas):
            is_first = number == 0
            events += self._event(
                ChatChunkChoice(
                    index=chunk.index,
                    delta=delta,
                    logprobs=logprobs if is_first else None,
                    token_ids=(chunk.token_ids if is_first else []) if self._returns_ids else UNSET,
                )
            )
        return events

    def _finish_event(self, chunk: TextChunk) -> bytes:
        if chunk.finish_reason is None:
            return b""
        return self._event(
            ChatChunkChoice(
                index=chunk.index,
                delta=ChatDelta(),
                finish_reason=self._answer.chat.finish_reason(chunk.index, chunk.finish_reason),
                stop_reason=chunk.stop_reason,
            )
        )

    def usage(self, usage: Usage) -> bytes:
        """See `ChunkWriter`."""
        return self._write([], usage)

    def _part_event(self, index: int, part: AnswerPart) -> bytes:
        if isinstance(part, TextPart):
            return self._text_event(index, part.text)
        return self._event(ChatChunkChoice(index=index, delta=self._delta(part)))

    def _delta(self, part: AnswerPart) -> ChatDelta:
        delta = write_part(part)
        return delta_in_kind(delta) if self._answer.chat.answers_in_functions else delta

    def _text_event(self, index: int, text: str) -> bytes:
        template = self._templates.get(index)
        if template is None:
            template = EventTemplate(
                lambda text: self._event(ChatChunkChoice(index=index, delta=ChatDelta(content=text)))
            )
            self._templates[index] = template
        return template.fill(text)

    def _event(
        self,
        choice: ChatChunkChoice,
        prompt_token_ids: list[int] | UnsetType = UNSET,
        prompt_text: str | UnsetType = UNSET,
    ) -> bytes:
        usage = self._answer.chat.usage() if self._continuous_usage else None
        return self._write([choice], usage, prompt_token_ids, prompt_text)

    def _write(
        self,
        choices: list[ChatChunkChoice],
        usage: Usage | None,
        prompt_token_ids: list[int] | UnsetType = UNSET,
        prompt_text: str | UnsetType = UNSET,
    ) -> bytes:
        chat = self._answer.chat
        chunk = ChatChunk(
            id=chat.label,
            created=chat.created,
            model=chat.model,
            choices=choices,
            usage=usage if self._include_usage else UNSET,
            prompt_token_ids=prompt_token_ids,
            prompt_text=prompt_text,
        )
        return event(encode_json(chunk))


def write_part(part: AnswerPart) -> ChatDelta:
    """Return a part of an answer as the stream's delta brings it."""
    match part:
        case TextPart():
            return ChatDelta(content=part.text)
        case ReasoningPart():
            return ChatDelta(reasoning=part.text, reasoning_content=part.text)
        case ToolCallPart():
            is_first = part.id is not None
            return ChatDelta(
                tool_calls=[
                    ToolCallDelta(
                        index=part.index,
                        id=UNSET if part.id is None else part.id,
                        type="function" if is_first else UNSET,
                        function=FunctionDelta(
                            name=UNSET if part.name is None else part.name, arguments=part.arguments
                        ),
                    )
                ]
            )
        case _:
            assert_never(part)
