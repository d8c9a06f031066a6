"""One HTTP request's generations: started together, counted in one place, and aborted together when it ends early."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from msgspec import UNSET

from pagewire.ipc.outputs import TokenLogprobs
from pagewire.ipc.sampling_params import SamplingParams

from ..http.request_timer import RequestTimer
from ..text.generation import Arrival, Generation, TextChunk, TextRequest
from ..tracing.tracing import GenerationTrace
from .beams import beam_search_of
from .bodies.responses import CompletionTokensDetails, PromptTokensDetails, Usage
from .bodies.schema import GenerationRequest
from .deadline import Deadline
from .serving import Serving
from .truncation import Truncation, truncation_of

logger = logging.getLogger(__name__)


class Answer:
    """All of one child's output, for answers that are not streamed."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason = "abort"
        self.stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self._texts)

    def add(self, chunk: TextChunk) -> None:
        """Append a chunk."""
        self._texts.append(chunk.text)
        self.token_ids.extend(chunk.token_ids)
        self.logprobs.extend(chunk.logprobs)
        if chunk.finish_reason is not None:
            self.finish_reason, self.stop_reason = chunk.finish_reason, chunk.stop_reason


class Call:
    """The generations of one HTTP request, one a prompt. Make it with `start_call`.

    Attributes:
        generations: in the order of the prompts; each has `n` children.
        has_deadline: whether the call's time is limited.
        shows_output: False for a call that only scores its prompt: what it draws is neither shown nor counted.
        stream_interval: tokens of a child that a stream brings together.
        is_speculative: whether tokens are guessed ahead: the usage then says how many of them were right.
        has_failed: set by whoever told the client of a failure without raising it.
    """

    def __init__(
        self,
        generations: Sequence[Generation],
        timers: Sequence[RequestTimer],
        n: int,
        *,
        has_deadline: bool = False,
        is_speculative: bool = False,
    ) -> None:
        self.generations = generations
        self.n = n
        self.has_deadline = has_deadline
        self.is_speculative = is_speculative
        self.shows_output = True
        self.stream_interval = 1
        self.has_failed = False
        self._timers = timers

    async def accepted(self) -> None:
        """Wait until the engine took every prompt.

        Raises:
            PagewireError: why it didn't take one.
        """
        for generation in self.generations:
            await generation.accepted()

    async def begun(self, limit_s: float) -> None:
        """Wait until a prompt has its first output, but at most `limit_s`.

        Raises:
            PagewireError: why a prompt failed.
        """
        change = asyncio.Event()
        for generation in self.generations:
            generation.listen(lambda _has_ended: change.set())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    while not any(generation.has_begun or generation.has_ended for generation in self.generations):
                        change.clear()
                        await change.wait()
        finally:
            for generation in self.generations:
                generation.listen(None)
        for generation in self.generations:
            generation.raise_error()

    def count(self, prompt_index: int, chunk: TextChunk) -> None:
        """Take note of a chunk; whoever reads a generation calls it for each."""
        self._timers[prompt_index].chunk_came(chunk)

    async def collect(self, on_chunk: Callable[[TextChunk], object] | None = None) -> list[list[Answer]]:
        """Return every prompt's answers, when all have ended.

        Args:
            on_chunk: called with each chunk as it comes.

        Raises:
            PagewireError: why one of them failed.
        """
        tasks = [asyncio.create_task(self._collect_one(index, on_chunk)) for index in range(len(self.generations))]
        try:
            # Side by side: a stop string ends its generation in the engine only once somebody reads it.
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _collect_one(self, prompt_index: int, on_chunk: Callable[[TextChunk], object] | None) -> list[Answer]:
        answers = [Answer() for _ in range(self.n)]
        async for chunk in self.generations[prompt_index]:
            self.count(prompt_index, chunk)
            answers[chunk.index].add(chunk)
            if on_chunk is not None:
                on_chunk(chunk)
        return answers

    def usage(self) -> Usage:
        """Return what the call cost so far: each prompt once, every child's output."""
        num_prompt = sum(len(generation.prompt_token_ids) for generation in self.generations)
        num_output = sum(sum(timer.num_output_tokens) for timer in self._timers) if self.shows_output else 0
        num_cached = sum(generation.num_cached_tokens for generation in self.generations)
        return Usage(
            prompt_tokens=num_prompt,
            completion_tokens=num_output,
            total_tokens=num_prompt + num_output,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
            completion_tokens_details=self._output_details() if self.is_speculative else UNSET,
        )

    def _output_details(self) -> CompletionTokensDetails:
        num_drafts = sum(generation.num_draft_tokens for generation in self.generations)
        num_accepted = sum(generation.num_accepted_tokens for generation in self.generations)
        return CompletionTokensDetails(
            accepted_prediction_tokens=num_accepted, rejected_prediction_tokens=num_drafts - num_accepted
        )


@asynccontextmanager
async def start_call(
    serving: Serving,
    prompts: Sequence[str | list[int]],
    params: SamplingParams,
    *,
    request: GenerationRequest,
    label: str,
    add_special_tokens: bool,
    deadline: Deadline,
) -> AsyncIterator[Call]:
    """Start one generation per prompt; leaving the context aborts those that still run.

    Args:
        serving: the served model.
        prompts: texts or token ids.
        params: how to draw, for all of them.
        request: for priority and cache_salt.
        label: the user's id of the request; several prompts get "-0", "-1", ... behind it.
        add_special_tokens: put the begin-of-text token before a text.
        deadline: when the call's time is over.

    Raises:
        InvalidRequest: a prompt or a value can't be served; nothing runs then.
        DeadlineExceeded: the time was over before the prompts were tokenized.
        EngineDead: the engine is gone.
    """
    arrival = Arrival()
    beams = beam_search_of(request, params)
    timers = [RequestTimer(serving.metrics, params, serving.clock) for _ in prompts]
    requests = await _prepare(
        serving,
        prompts,
        params,
        request=request,
        label=label,
        add_special_tokens=add_special_tokens,
        deadline=deadline,
    )
    generations: list[Generation] = []
    call = Call(
        generations, timers, params.n,
        has_deadline=deadline.at_s is not None, is_speculative=serving.info.num_speculative_tokens > 0,
    )  # fmt: skip
    call.stream_interval = request.stream_interval or 1
    try:
        # From here on something runs. All go out without a pause: none is refused for its form any more.
        generations.extend(serving.generator.submit(each, arrival, beams=beams) for each in requests)
        if serving.log_requests:
            _log_request(label, generations, params)
        yield call
    except ConnectionError:  # the client left: that is an abort
        raise
    except Exception:
        call.has_failed = True
        raise
    finally:
        _report(serving, call, timers, label=label, model=request.model, params=params)


def _report(
    serving: Serving,
    call: Call,
    timers: Sequence[RequestTimer],
    *,
    label: str,
    model: str | None,
    params: SamplingParams,
) -> None:
    """Count and trace a call's generations, and abort those that still run."""
    for timer, generation in zip(timers, call.generations, strict=False):  # fewer, if the engine died between
        record = timer.done(generation, has_failed=call.has_failed)
        if serving.tracing is not None:
            serving.tracing.generation_done(
                GenerationTrace(
                    request_id=label,
                    model=model or serving.info.served_model_names[0],
                    params=params,
                    record=record,
                    arrived_at_s=generation.metrics.arrival_timestamp,
                )
            )
        generation.close()


async def _prepare(
    serving: Serving,
    prompts: Sequence[str | list[int]],
    params: SamplingParams,
    *,
    request: GenerationRequest,
    label: str,
    add_special_tokens: bool,
    deadline: Deadline,
) -> list[TextRequest]:
    """Return one checked request per prompt; arguments and errors as `start_call`."""
    most = serving.info.max_model_len - (params.max_tokens or 1)
    truncation = truncation_of(request, most=max(most, 1), default_side="left")
    encoded, bad_words_token_ids = await _encode(
        serving, prompts, params, truncation, add_special_tokens=add_special_tokens, deadline=deadline
    )
    requests: list[TextRequest] = []
    for index, (text, token_ids) in enumerate(encoded):
        requests.append(
            serving.generator.prepare(
                token_ids,
                params,
                bad_words_token_ids=bad_words_token_ids,
                prompt_text=text,
                label=label if len(prompts) == 1 else f"{label}-{index}",
                priority=request.priority or 0,
                cache_salt=request.cache_salt or "",
                timeout_s=deadline.left_s(),
                adapter=serving.adapter_of(request.model),
            )
        )
        if len(prompts) > 1:
            await asyncio.sleep(0)  # others have their turn between prompts
    return requests


async def _encode(
    serving: Serving,
    prompts: Sequence[str | list[int]],
    params: SamplingParams,
    truncation: Truncation | None,
    *,
    add_special_tokens: bool,
    deadline: Deadline,
) -> tuple[list[tuple[str | None, list[int]]], list[list[int]]]:
    """Return each prompt as (its text, its token ids), and what spells the bad words."""
    for prompt in prompts:
        if truncation is None:
            serving.check_prompt_size(prompt)
    encoded: list[tuple[str | None, list[int]]] = []
    async with deadline.bound():
        bad_words_token_ids = await serving.generator.spell_bad_words(params.bad_words)
        for prompt in prompts:
            if not isinstance(prompt, str):
                encoded.append((None, prompt if truncation is None else truncation.cut(prompt)))
            elif truncation is None:
                token_ids = await serving.encode_prompt(prompt, add_special_tokens=add_special_tokens)
                encoded.append((prompt, token_ids))
            else:
                text = truncation.cut_text(prompt)
                token_ids = await serving.tokenizer.encode_async(text, add_special_tokens=add_special_tokens)
                encoded.append((prompt, truncation.cut(token_ids)))
            if len(prompts) > 1:
                await asyncio.sleep(0)  # a short text is encoded here and now: others have their turn between
    return encoded, bad_words_token_ids


def _log_request(label: str, generations: Sequence[Generation], params: SamplingParams) -> None:
    for generation in generations:
        logger.info(
            "Received request_id=%s: num_prompt_tokens=%s, params=%s", label, len(generation.prompt_token_ids), params
        )
