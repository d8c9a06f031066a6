"""Beam search: the likeliest answers instead of drawn ones, over the next-token logprobs that somebody computes.

The search keeps `beam_width` unfinished answers ("beams"). Each step asks for the likeliest next tokens of every beam
and keeps the best of all that they make; a beam that takes an end token is finished and leaves. Nothing is drawn and
nothing waits here: `beam_generation.py` asks the engine.

Source: vLLM's `beam_search` (scores, end tokens and the length penalty are its own, so that answers are the same).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import msgspec

from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.outputs import TokenLogprobs
from pagewire.ipc.sampling_params import MAX_N

MAX_LENGTH_PENALTY = 10  # the longest context to its power is still a float


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How wide and how long to search.

    Attributes:
        beam_width: beams that are kept, and answers that are returned.
        max_tokens: output tokens of an answer; the context may leave fewer.
        ignore_eos: end tokens are tokens like others.
        temperature: has no effect: scores are logprobs of the unscaled distribution.
        length_penalty: scores are divided by (prompt and output tokens) ** length_penalty: above 0 favours long ones.
        include_stop_str_in_output: the text of an end token is shown.
        early_stopping: end when `beam_width` answers are finished, instead of when no beam can become better than them.
    """

    beam_width: int
    max_tokens: int = 16
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    early_stopping: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.beam_width <= MAX_N:
            raise InvalidRequest(f"beam_width must be from 1 to {MAX_N}; got {self.beam_width}.", param="n")
        if self.max_tokens < 1:
            raise InvalidRequest(f"max_tokens must be at least 1; got {self.max_tokens}.", param="max_tokens")
        most = MAX_LENGTH_PENALTY
        if not -most <= self.length_penalty <= most:  # and no NaN
            raise InvalidRequest(
                f"length_penalty must be from -{most} to {most}; got {self.length_penalty}.", param="length_penalty"
            )

    @property
    def num_candidates(self) -> int:
        """Next tokens that are looked at per beam: as many as may end, and still leave `beam_width` that go on."""
        return 2 * self.beam_width


class Beam(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One answer so far.

    Attributes:
        token_ids: its output, an end token among them.
        logprobs: one entry a token.
        cumulative_logprob: their sum.
        end_token_id: the token that finished it; None while it can go on, or where the length ended it.
    """

    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    cumulative_logprob: float = 0.0
    end_token_id: int | None = None


class BeamSearch:
    """The state of one search.

    Args:
        params: its width and scores.
        num_prompt_tokens: of the prompt; they count for the length penalty.
        max_tokens: most output tokens, by the request and by the context.
        end_token_ids: tokens that finish an answer; none with `ignore_eos`.

    Attributes:
        beams: those that go on, best first; at first the empty answer.
    """

    def __init__(
        self, params: BeamSearchParams, *, num_prompt_tokens: int, max_tokens: int, end_token_ids: Collection[int]
    ) -> None:
        self.beams = [Beam()]
        self._params = params
        self._num_prompt_tokens = num_prompt_tokens
        self._max_tokens = max_tokens
        self._end_token_ids = frozenset(end_token_ids)
        self._finished: list[Beam] = []
        self._num_tokens = 0

    @property
    def is_done(self) -> bool:
        """Whether another step could not change the answers."""
        width = self._params.beam_width
        if self._num_tokens >= self._max_tokens or not self.beams:
            return True
        if len(self._finished) < width:
            return False
        if self._params.early_stopping:
            return True
        worst = sorted((self._score(beam) for beam in self._finished), reverse=True)[width - 1]
        return max(map(self._best_possible, self.beams)) <= worst

    def advance(self, candidates: Sequence[TokenLogprobs]) -> None:
        """Take one step.

        Args:
            candidates: for each beam the likeliest tokens behind it, `num_candidates` of them or all that there are.
        """
        self._num_tokens += 1
        # (score, beam, place among its candidates): built of small numbers, and only those that stay become beams.
        going_on: list[tuple[float, int, int]] = []
        for index, (beam, entry) in enumerate(zip(self.beams, candidates, strict=True)):
            num_candidates = min(self._params.num_candidates, len(entry.top_token_ids))
            for place in range(num_candidates):
                total = beam.cumulative_logprob + entry.top_logprobs[place]
                if total == -math.inf:
                    continue  # an impossible token is no answer
                if entry.top_token_ids[place] in self._end_token_ids:
                    self._finished.append(_extend(beam, entry, place, is_end=True))
                else:
                    going_on.append((self._penalize(total, self._num_tokens), index, place))
        going_on.sort(key=lambda candidate: -candidate[0])
        self.beams = [
            _extend(self.beams[index], candidates[index], place, is_end=False)
            for _, index, place in going_on[: self._params.beam_width]
        ]

    def best(self) -> list[Beam]:
        """Return the answers, best first."""
        return sorted([*self._finished, *self.beams], key=lambda beam: -self._score(beam))[: self._params.beam_width]

    def _score(self, beam: Beam) -> float:
        num_tokens = len(beam.token_ids) - (beam.end_token_id is not None)
        return self._penalize(beam.cumulative_logprob, num_tokens)

    def _penalize(self, cumulative_logprob: float, num_tokens: int) -> float:
        length = max(self._num_prompt_tokens + num_tokens, 1)
        return float(cumulative_logprob / length**self._params.length_penalty)

    def _best_possible(self, beam: Beam) -> float:
        """Return a score that no continuation of a beam beats: its sum only falls, its length may be any from here."""
        return max(self._penalize(beam.cumulative_logprob, length) for length in (self._num_tokens, self._max_tokens))


def _extend(beam: Beam, entry: TokenLogprobs, place: int, *, is_end: bool) -> Beam:
    token_id, logprob = entry.top_token_ids[place], entry.top_logprobs[place]
    chosen = msgspec.structs.replace(entry, token_id=token_id, logprob=logprob, rank=place + 1)
    return Beam(
        token_ids=[*beam.token_ids, token_id],
        logprobs=[*beam.logprobs, chosen],
        cumulative_logprob=beam.cumulative_logprob + logprob,
        end_token_id=token_id if is_end else None,
    )
