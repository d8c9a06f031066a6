"""What `LLM` returns, in the shapes that vLLM's users know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from pagewire.ipc.outputs import TokenLogprobs


class Logprob(msgspec.Struct, frozen=True):
    """One candidate for a position.

    Attributes:
        logprob: natural logarithm of its probability, before sampling options.
        rank: 1 for the most likely token.
        decoded_token: its text.
    """

    logprob: float
    rank: int
    decoded_token: str


class CompletionOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One answer.

    Attributes:
        index: which of the n answers.
        token_ids: all tokens, an end token among them; its text is not part of `text`.
        cumulative_logprob: the sum over the tokens, if logprobs were asked for.
        logprobs: per token, candidate token id -> Logprob; the drawn token first.
        finish_reason: stop, length or abort.
        stop_reason: the stop string or stop token id that ended it; None for the model's own end token.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class RequestMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """When things happened to a request, in seconds since its arrival; None where it never got so far.

    Attributes:
        arrival_time: 0.0, so that differences to it are right.
        arrival_timestamp: the arrival as wall-clock time, seconds since 1970.
        first_scheduled_time: its first step was scheduled.
        time_in_queue: from the arrival until then.
        first_token_time: its first token was received.
        last_token_time: its last one was.
        finished_time: its last answer ended.
        num_preemptions: how often its blocks were taken and recomputed.
        num_draft_tokens: tokens that were guessed ahead and checked.
        num_accepted_tokens: of those, the ones that were right.
    """

    arrival_time: float = 0.0
    arrival_timestamp: float
    first_scheduled_time: float | None = None
    time_in_queue: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to one prompt.

    Attributes:
        prompt: the text, if the prompt was one.
        prompt_logprobs: per prompt token, candidate token id -> Logprob; None for the first, which nothing precedes.
        num_cached_tokens: prompt tokens whose keys and values came from the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int


class TokenTexts(Protocol):
    """Gives tokens their texts: a `Tokenizer`."""

    def token_text(self, token_id: int) -> str:
        """Return a token's text."""


def to_logprob_dicts(entries: Iterable[TokenLogprobs], texts: TokenTexts) -> list[dict[int, Logprob]]:
    """Turn the engine's logprobs into one dict a position."""
    return [_to_dict(entry, texts) for entry in entries]


def to_prompt_logprob_dicts(
    entries: Sequence[TokenLogprobs] | None, texts: TokenTexts
) -> list[dict[int, Logprob] | None] | None:
    """The same for the prompt, whose first token has none."""
    return None if entries is None else [None, *to_logprob_dicts(entries, texts)]


def _to_dict(entry: TokenLogprobs, texts: TokenTexts) -> dict[int, Logprob]:
    candidates = {entry.token_id: Logprob(entry.logprob, entry.rank, texts.token_text(entry.token_id))}
    for rank, (token_id, logprob) in enumerate(zip(entry.top_token_ids, entry.top_logprobs, strict=True), start=1):
        if token_id != entry.token_id:
            candidates[token_id] = Logprob(logprob, rank, texts.token_text(token_id))
    return candidates
