"""`LLM.beam_search`: the likeliest answers to each prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from pagewire.ipc.errors import RequestError
from pagewire.ipc.sampling_params import SamplingParams

from ..client.gathering import gather_all
from ..text.beam_generation import BeamGeneration
from ..text.beam_search import Beam, BeamSearchParams
from ..text.generation import TextGenerator
from .outputs import Logprob, to_logprob_dicts
from .progress import Progress
from .prompts import OfflinePrompt


class BeamSearchSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One answer.

    Attributes:
        tokens: the prompt and the answer, an end token among them.
        text: theirs, without special tokens.
        logprobs: per token of the answer, candidate token id -> Logprob; the chosen token first.
        cum_logprob: the sum over the answer.
        finish_reason: stop or length.
        stop_reason: the stop token id that ended it; None for the model's own end token.
    """

    tokens: list[int]
    text: str
    logprobs: list[dict[int, Logprob]]
    cum_logprob: float
    finish_reason: str
    stop_reason: int | None = None


class BeamSearchOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to one prompt, best first."""

    sequences: list[BeamSearchSequence]


async def search_prompts(
    generator: TextGenerator,
    prompts: Sequence[OfflinePrompt],
    params: BeamSearchParams,
    adapters: Sequence[str],
    progress: Progress,
    *,
    concurrency_limit: int | None = None,
) -> list[BeamSearchOutput]:
    """Return the answers to each prompt, in their order; when one fails, the others are aborted.

    Raises:
        RequestError: a prompt can't be served; with several prompts the text says which.
        EngineError: the engine failed.
    """
    turns = asyncio.Semaphore(concurrency_limit or len(prompts) or 1)

    async def search(index: int, prompt: OfflinePrompt, adapter: str) -> BeamSearchOutput:
        async with turns:
            try:
                output = await _search(generator, prompt, params, adapter)
            except RequestError as exc:
                if len(prompts) == 1:
                    raise
                raise type(exc)(f"Prompt {index}: {exc.message}", param=exc.param) from exc
        progress.request_done(0, sum(len(sequence.logprobs) for sequence in output.sequences))
        return output

    return await gather_all(
        search(index, prompt, adapter) for index, (prompt, adapter) in enumerate(zip(prompts, adapters, strict=True))
    )


async def _search(
    generator: TextGenerator, prompt: OfflinePrompt, params: BeamSearchParams, adapter: str
) -> BeamSearchOutput:
    token_ids = list(prompt.token_ids)
    if prompt.text is not None:
        token_ids = await generator.tokenizer.encode_async(prompt.text, add_special_tokens=True)
    sampling = SamplingParams(n=params.beam_width, max_tokens=params.max_tokens, ignore_eos=params.ignore_eos)
    request = generator.prepare(
        token_ids, sampling, prompt_text=prompt.text, cache_salt=prompt.cache_salt, adapter=adapter
    )
    generation = BeamGeneration(generator.client, generator.tokenizer, request, params)
    try:
        beams = await generation.search()
    finally:
        generation.close()
    return BeamSearchOutput(sequences=[_to_sequence(generator, token_ids, beam, params) for beam in beams])


def _to_sequence(
    generator: TextGenerator, prompt_token_ids: Sequence[int], beam: Beam, params: BeamSearchParams
) -> BeamSearchSequence:
    tokens = [*prompt_token_ids, *beam.token_ids]
    return BeamSearchSequence(
        tokens=tokens,
        text=generator.tokenizer.decode(tokens, skip_special_tokens=not params.include_stop_str_in_output),
        logprobs=to_logprob_dicts(beam.logprobs, generator.tokenizer),
        cum_logprob=beam.cumulative_logprob,
        finish_reason="length" if beam.end_token_id is None else "stop",
    )
