"""POST /v1/completions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from aiohttp import web
from msgspec import UNSET, UnsetType

from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.outputs import TokenLogprobs

from ..http.sse import event
from ..text.generation import TextChunk
from .best_of import choose_best, draw_best_of
from .bodies.json_body import JsonBody, encode_json, json_response
from .bodies.responses import CompletionChoice, CompletionLogprobs, CompletionResponse, PromptLogprobs, Usage
from .bodies.schema import MAX_PROMPTS, CompletionRequest, refuse_unsupported
from .call import Answer, Call, start_call
from .echo import EchoedPrompt
from .event_template import EventTemplate
from .logprobs import CompletionLogprobsWriter, cut_tokens, join_logprobs, name_by_ids, write_prompt_logprobs
from .params import check_stream_options, sampling_params
from .serving import SERVING, Serving, request_id, request_label
from .streaming import stream_answers

DEFAULT_MAX_TOKENS = 16  # OpenAI's

_BODY = JsonBody(CompletionRequest)


async def create_completion(request: web.Request) -> web.StreamResponse:
    """Complete one prompt or several, streamed or whole."""
    serving = request.app[SERVING]
    body = await _BODY.read(request)
    refuse_unsupported(body)
    model = serving.check_model(body.model)
    deadline = serving.deadline_of(request, body)
    include_usage, continuous_usage = check_stream_options(body, forces_usage=serving.forces_usage)
    prompts = split_prompts(body.prompt)
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    scores_only = bool(body.echo) and max_tokens == 0
    params = sampling_params(
        body,
        serving.defaults,
        # The engine always draws a token; of a call that scores its prompt it isn't shown or counted.
        max_tokens=1 if scores_only else max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=_num_prompt_logprobs(body),
    )
    params = draw_best_of(body, params)
    label = "cmpl-" + request_label(request, body)
    async with start_call(
        serving,
        prompts,
        params,
        request=body,
        label=label,
        add_special_tokens=body.add_special_tokens is not False,
        deadline=deadline,
    ) as call:
        call.shows_output = not scores_only
        answer = _CompletionAnswer(serving, body, prompts, call, label, model)
        if body.stream:
            writer = _CompletionChunkWriter(answer, include_usage=include_usage, continuous_usage=continuous_usage)
            return await stream_answers(request, serving, call, writer, include_usage=include_usage)
        collected = [choose_best(answers, body.n or 1) for answers in await call.collect()]
        return json_response(answer.whole(collected), request_id(request))


def split_prompts(
    prompt: str | Sequence[str | int | list[int]] | None, *, param: str = "prompt"
) -> list[str | list[int]]:
    """Return a request's prompts: a text, token ids, or a list of either.

    Raises:
        InvalidRequest: there is none, they are too many, or their kinds are mixed.
    """
    if prompt is None:
        raise InvalidRequest(f"{param} is missing: send a text, token ids, or a list of either.", param=param)
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest(f"{param} is an empty list; send at least one prompt.", param=param)
    kinds = {type(part) for part in prompt}
    if kinds == {int}:
        return [[part for part in prompt if isinstance(part, int)]]
    if len(kinds) > 1:
        raise InvalidRequest(f"{param} mixes texts and token ids; send a list of one kind.", param=param)
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequest(
            f"{param} holds {len(prompt)} prompts, of at most {MAX_PROMPTS} a request; send several requests.",
            param=param,
        )
    return [part for part in prompt if not isinstance(part, int)]


def _num_prompt_logprobs(body: CompletionRequest) -> int | None:
    """The prompt's logprobs may be asked for by their own field, and by echo and logprobs together."""
    asked = [body.prompt_logprobs, body.logprobs if body.echo else None]
    counts = [count for count in asked if count is not None]
    if not counts:
        return None
    return -1 if -1 in counts else max(counts)


class _CompletionAnswer:
    """What all parts of one answer have in common."""

    def __init__(
        self,
        serving: Serving,
        body: CompletionRequest,
        prompts: Sequence[str | list[int]],
        call: Call,
        label: str,
        model: str,
    ) -> None:
        self.body = body
        self.call = call
        self.label = label
        self.model = model
        self.created = int(serving.wall_clock())
        self.tokenizer = serving.tokenizer
        self._as_ids = serving.names_tokens_by_id(body)
        self._num_choices = body.n or 1  # a prompt
        self._prompts = prompts
        self._echoes: dict[int, EchoedPrompt] = {}

    def whole(self, collected: Sequence[Sequence[Answer]]) -> CompletionResponse:
        """Return the answer that is not streamed."""
        return CompletionResponse(
            id=self.label,
            created=self.created,
            model=self.model,
            choices=[
                self._choice(prompt_index, child, answer)
                for prompt_index, answers in enumerate(collected)
                for child, answer in enumerate(answers)
            ],
            usage=self.call.usage(),
        )

    def choice_index(self, prompt_index: int, child: int) -> int:
        """Return a child's place among all choices."""
        return prompt_index * self._num_choices + child

    def echo(self, prompt_index: int) -> EchoedPrompt:
        """Return a prompt as it is echoed; there from its first output on, as its logprobs are."""
        if prompt_index not in self._echoes:
            generation = self.call.generations[prompt_index]
            is_cut = self.body.truncate_prompt_tokens is not None
            self._echoes[prompt_index] = EchoedPrompt(
                self.tokenizer,
                generation.prompt_token_ids if is_cut else self._prompts[prompt_index],
                generation,
                num_logprobs=self.body.logprobs,
                as_ids=self._as_ids,
            )
        return self._echoes[prompt_index]

    def logprobs_writer(self, prompt_index: int) -> CompletionLogprobsWriter | None:
        """Return what writes one choice's logprobs, if they were asked for."""
        if self.body.logprobs is None:
            return None
        return CompletionLogprobsWriter(
            self.tokenizer,
            self.call.generations[prompt_index].prompt_token_ids,
            num_top=self.body.logprobs,
            skip_special_tokens=self.body.skip_special_tokens is not False,
            text_offset=len(self.echo(prompt_index).text) if self.body.echo else 0,
            as_ids=self._as_ids,
        )

    def name_tokens(self, logprobs: CompletionLogprobs, entries: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        """Return logprobs, cut already, with their tokens named as they are to be."""
        return name_by_ids(logprobs, [entry.token_id for entry in entries]) if self._as_ids else logprobs

    def prompt_token_ids(self, prompt_index: int) -> list[int] | UnsetType:
        """Return a prompt's token ids, if they were asked for."""
        return self.call.generations[prompt_index].prompt_token_ids if self.body.return_token_ids else UNSET

    def prompt_text(self, prompt_index: int) -> str | UnsetType:
        """Return a prompt's text, if it was asked for."""
        if not self.body.return_prompt_text:
            return UNSET
        generation = self.call.generations[prompt_index]
        if generation.prompt is not None:
            return generation.prompt
        return self.tokenizer.decode(generation.prompt_token_ids, skip_special_tokens=False)

    def _choice(self, prompt_index: int, child: int, answer: Answer) -> CompletionChoice:
        echo = self.echo(prompt_index) if self.body.echo else None
        text = answer.text if self.call.shows_output else ""
        token_ids = answer.token_ids if self.call.shows_output else []
        if echo is not None:
            text = echo.text + text
        return CompletionChoice(
            index=self.choice_index(prompt_index, child),
            text=text,
            logprobs=self._whole_logprobs(prompt_index, answer, echo, len(text)),
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason if self.call.shows_output else None,
            token_ids=token_ids if self.body.return_token_ids else UNSET,
            prompt_token_ids=self.prompt_token_ids(prompt_index),
            prompt_text=self.prompt_text(prompt_index),
            prompt_logprobs=self._prompt_logprobs(prompt_index),
        )

    def _whole_logprobs(
        self, prompt_index: int, answer: Answer, echo: EchoedPrompt | None, text_end: int
    ) -> CompletionLogprobs | None:
        writer = self.logprobs_writer(prompt_index)
        if writer is None:
            return None
        entries = answer.logprobs if self.call.shows_output else []
        logprobs = self.name_tokens(cut_tokens(writer.write(entries, is_last=True), text_end), entries)
        if echo is None or echo.logprobs is None:
            return logprobs
        return join_logprobs(echo.logprobs, logprobs)

    def _prompt_logprobs(self, prompt_index: int) -> PromptLogprobs | UnsetType:
        if self.body.prompt_logprobs is None:
            return UNSET
        generation = self.call.generations[prompt_index]
        return write_prompt_logprobs(self.tokenizer, generation.prompt_token_ids, generation.prompt_logprobs or [])


class _CompletionChunkWriter:
    """Writes the events of a completion stream: the echoed prompt, text, and an empty text with the finish reason."""

    def __init__(self, answer: _CompletionAnswer, *, include_usage: bool, continuous_usage: bool) -> None:
        self._answer = answer
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._returns_ids = bool(answer.body.return_token_ids)
        self._logprobs: dict[int, CompletionLogprobsWriter] = {}
        self._num_characters: defaultdict[int, int] = defaultdict(int)  # sent, by choice index; for logprobs
        self._templates: dict[int, EventTemplate] = {}
        self._sends_text_alone = (
            answer.body.logprobs is None and answer.call.shows_output and not continuous_usage and not self._returns_ids
        )

    def head(self, prompt_index: int) -> bytes:
        """See `ChunkWriter`."""
        answer = self._answer
        if not answer.body.echo and not answer.body.return_prompt_text:
            return b""
        echo = answer.echo(prompt_index) if answer.body.echo else None
        return b"".join(
            self._event(
                CompletionChoice(
                    index=answer.choice_index(prompt_index, child),
                    text="" if echo is None else echo.text,
                    logprobs=None if echo is None else echo.logprobs,
                    prompt_token_ids=answer.prompt_token_ids(prompt_index),
                    prompt_text=answer.prompt_text(prompt_index),
                )
            )
            for child in range(answer.call.n)
        )

    def chunk(self, prompt_index: int, chunk: TextChunk) -> bytes:
        """See `ChunkWriter`."""
        answer = self._answer
        index = answer.choice_index(prompt_index, chunk.index)
        if self._sends_text_alone and chunk.finish_reason is None:
            return self._text_event(index, chunk.text) if chunk.text else b""
        is_last = chunk.finish_reason is not None
        events = b""
        self._num_characters[index] += len(chunk.text)
        if answer.call.shows_output:
            logprobs = self._write_logprobs(prompt_index, index, chunk, is_last=is_last)
            if chunk.text or logprobs is not None or (self._returns_ids and chunk.token_ids):
                token_ids = chunk.token_ids if self._returns_ids else UNSET
                events = self._event(
                    CompletionChoice(index=index, text=chunk.text, logprobs=logprobs, token_ids=token_ids)
                )
        if is_last:
            events += self._event(
                CompletionChoice(
                    index=index,
                    text="",
                    finish_reason=chunk.finish_reason,
                    stop_reason=chunk.stop_reason if answer.call.shows_output else None,
                )
            )
        return events

    def usage(self, usage: Usage) -> bytes:
        """See `ChunkWriter`."""
        return self._write([], usage)

    def _text_event(self, index: int, text: str) -> bytes:
        template = self._templates.get(index)
        if template is None:
            template = EventTemplate(lambda text: self._event(CompletionChoice(index=index, text=text)))
            self._templates[index] = template
        return template.fill(text)

    def _write_logprobs(
        self, prompt_index: int, index: int, chunk: TextChunk, *, is_last: bool
    ) -> CompletionLogprobs | None:
        if self._answer.body.logprobs is None or not chunk.logprobs:
            return None
        writer = self._logprobs.get(index)
        if writer is None:
            writer = self._answer.logprobs_writer(prompt_index)
            assert writer is not None
            self._logprobs[index] = writer
        logprobs = writer.write(chunk.logprobs, is_last=is_last)
        # Until the end, tokens may run ahead of a text that is held back; the end shows where it was cut.
        if is_last:
            logprobs = cut_tokens(logprobs, writer.text_offset + self._num_characters[index])
        return self._answer.name_tokens(logprobs, chunk.logprobs)

    def _event(self, choice: CompletionChoice) -> bytes:
        return self._write([choice], self._answer.call.usage() if self._continuous_usage else None)

    def _write(self, choices: list[CompletionChoice], usage: Usage | None) -> bytes:
        answer = self._answer
        chunk = CompletionResponse(
            id=answer.label,
            created=answer.created,
            model=answer.model,
            choices=choices,
            usage=usage if self._include_usage else UNSET,
        )
        return event(encode_json(chunk))
