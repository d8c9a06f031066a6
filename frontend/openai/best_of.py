"""`best_of` of /v1/completions: draw so many answers, give back the likeliest."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.sampling_params import GREEDY_BELOW, MAX_N, SamplingParams

from .bodies.schema import CompletionRequest
from .call import Answer


def draw_best_of(body: CompletionRequest, params: SamplingParams) -> SamplingParams:
    """Return how to draw as many answers as `best_of` says, with the logprobs to choose by.

    Raises:
        InvalidRequest: `best_of` is out of range, or contradicts another field.
    """
    if body.best_of is None or body.best_of == params.n:
        return params
    if not params.n <= body.best_of <= MAX_N:
        raise InvalidRequest(f"best_of must be from n, {params.n}, to {MAX_N}; got {body.best_of}.", param="best_of")
    if body.stream:
        raise InvalidRequest("best_of can't be streamed: the best is known at the end.", param="best_of")
    if params.temperature < GREEDY_BELOW:
        raise InvalidRequest("best_of needs a temperature above 0: greedy answers are all alike.", param="best_of")
    return msgspec.structs.replace(params, n=body.best_of, logprobs=params.logprobs or 0)


def choose_best(answers: Sequence[Answer], n: int) -> Sequence[Answer]:
    """Return the n answers of a prompt with the highest sum of logprobs, the best first; all, if there are no more."""
    if len(answers) <= n:
        return answers
    return sorted(answers, key=lambda answer: -sum(entry.logprob for entry in answer.logprobs))[:n]
