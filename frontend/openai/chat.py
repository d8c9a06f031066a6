"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web
from msgspec import UNSET, UnsetType

from pagewire.ipc.errors import InvalidRequest

from ..http.sse import event
from ..text.generation import TextChunk
from .bodies.json_body import JsonBody, encode_json, json_response
from .bodies.responses import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatResponse,
    Usage,
)
from .bodies.schema import ChatRequest, refuse_unsupported
from .call import Answer, Call, start_call
from .event_template import EventTemplate
from .logprobs import ChatLogprobsWriter, write_prompt_logprobs
from .messages import render_messages
from .params import check_stream_options, sampling_params
from .serving import SERVING, Serving, request_id, request_label
from .streaming import stream_answers

_BODY = JsonBody(ChatRequest)


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """Answer a chat, streamed or whole."""
    serving = request.app[SERVING]
    body = await _BODY.read(request)
    refuse_unsupported(body)
    model = serving.check_model(body.model)
    deadline = serving.deadline_of(request, body)
    include_usage, continuous_usage = check_stream_options(body)
    num_logprobs = _num_logprobs(body, serving)
    params = sampling_params(
        body,
        serving.defaults,
        max_tokens=_first(body.max_completion_tokens, body.max_tokens, serving.defaults.max_tokens),
        logprobs=num_logprobs,
        prompt_logprobs=body.prompt_logprobs,
    )
    async with deadline.bound():
        prompt = await render_messages(serving.chats, body)
    label = "chatcmpl-" + request_label(request, body)
    async with start_call(
        serving,
        [prompt],
        params,
        request=body,
        label=label,
        add_special_tokens=bool(body.add_special_tokens),
        deadline=deadline,
    ) as call:
        answer = _ChatAnswer(serving, body, call, label, model)
        if body.stream:
            writer = _ChatChunkWriter(answer, include_usage=include_usage, continuous_usage=continuous_usage)
            return await stream_answers(request, serving, call, writer, include_usage=include_usage)
        [answers] = await call.collect()
        return json_response(answer.whole(answers), request_id(request))


class _ChatAnswer:
    """What all parts of one answer have in common."""

    def __init__(self, serving: Serving, body: ChatRequest, call: Call, label: str, model: str) -> None:
        self.body = body
        self.call = call
        self.label = label
        self.model = model
        self.created = int(serving.wall_clock())
        self.tokenizer = serving.tokenizer
        self.logprobs: ChatLogprobsWriter | None = None
        if body.logprobs:
            self.logprobs = ChatLogprobsWriter(
                serving.tokenizer, num_top=body.top_logprobs or 0, shows_special=body.skip_special_tokens is False
            )

    def whole(self, answers: Sequence[Answer]) -> ChatResponse:
        """Return the answer that is not streamed."""
        prompt_token_ids = self.call.generations[0].prompt_token_ids
        prompt_logprobs = self.call.generations[0].prompt_logprobs or []
        return ChatResponse(
            id=self.label,
            created=self.created,
            model=self.model,
            choices=[self._choice(index, answer) for index, answer in enumerate(answers)],
            usage=self.call.usage(),
            prompt_logprobs=UNSET
            if self.body.prompt_logprobs is None
            else write_prompt_logprobs(self.tokenizer, prompt_token_ids, prompt_logprobs),
            prompt_token_ids=prompt_token_ids if self.body.return_token_ids else UNSET,
        )

    def _choice(self, index: int, answer: Answer) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=AnswerMessage(content=answer.text),
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
        self._sends_text_alone = answer.logprobs is None and not continuous_usage and not self._returns_ids

    def head(self, prompt_index: int) -> bytes:
        """See `ChunkWriter`."""
        answer = self._answer
        prompt_token_ids = answer.call.generations[prompt_index].prompt_token_ids if self._returns_ids else UNSET
        role = ChatDelta(role="assistant", content="")
        return b"".join(
            self._event(ChatChunkChoice(index=index, delta=role), prompt_token_ids) for index in range(answer.call.n)
        )

    def chunk(self, prompt_index: int, chunk: TextChunk) -> bytes:
        """See `ChunkWriter`."""
        if self._sends_text_alone and chunk.finish_reason is None:
            return self._text_event(chunk.index, chunk.text) if chunk.text else b""
        events = b""
        logprobs: ChatLogprobs | None = None
        if self._answer.logprobs is not None and chunk.logprobs:
            logprobs = self._answer.logprobs.write(chunk.logprobs)
        if chunk.text or logprobs is not None or (self._returns_ids and chunk.token_ids):
            events = self._event(
                ChatChunkChoice(
                    index=chunk.index,
                    delta=ChatDelta(content=chunk.text),
                    logprobs=logprobs,
                    token_ids=chunk.token_ids if self._returns_ids else UNSET,
                )
            )
        if chunk.finish_reason is not None:
            events += self._event(
                ChatChunkChoice(
                    index=chunk.index,
                    delta=ChatDelta(),
                    finish_reason=chunk.finish_reason,
                    stop_reason=chunk.stop_reason,
                )
            )
        return events

    def usage(self, usage: Usage) -> bytes:
        """See `ChunkWriter`."""
        return self._write([], usage)

    def _text_event(self, index: int, text: str) -> bytes:
        template = self._templates.get(index)
        if template is None:
            template = EventTemplate(
                lambda text: self._event(ChatChunkChoice(index=index, delta=ChatDelta(content=text)))
            )
            self._templates[index] = template
        return template.fill(text)

    def _event(self, choice: ChatChunkChoice, prompt_token_ids: list[int] | UnsetType = UNSET) -> bytes:
        return self._write([choice], self._answer.call.usage() if self._continuous_usage else None, prompt_token_ids)

    def _write(
        self,
        choices: list[ChatChunkChoice],
        usage: Usage | None,
        prompt_token_ids: list[int] | UnsetType = UNSET,
    ) -> bytes:
        answer = self._answer
        chunk = ChatChunk(
            id=answer.label,
            created=answer.created,
            model=answer.model,
            choices=choices,
            usage=usage if self._include_usage else UNSET,
            prompt_token_ids=prompt_token_ids,
        )
        return event(encode_json(chunk))


def _num_logprobs(body: ChatRequest, serving: Serving) -> int | None:
    if body.top_logprobs is not None:
        most = serving.info.vocab_size if serving.info.max_logprobs == -1 else serving.info.max_logprobs
        if not -1 <= body.top_logprobs <= most:
            raise InvalidRequest(
                f"top_logprobs must be from 0 to {most}, or -1 for all; got {body.top_logprobs}.", param="top_logprobs"
            )
        if body.top_logprobs and not body.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true.", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
