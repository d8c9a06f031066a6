"""What the ops at the end of a step take where tokens are drawn on the device: tables of tensors, one entry a thing.

The host fills them, all in one copy, and never waits for what they are about. What sizes a launch is a plain number.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from torch import Tensor

OK, NOT_FINITE, NOTHING_TO_DRAW = 0, 1, 2
"""States of a row: it has a token; the model's logits have no finite maximum; the edits left no token."""


class ChunkBests(NamedTuple):
    """What is known of rows of logits, chunk by chunk of neighbouring tokens; how long a chunk is the backend knows.

    Attributes:
        values: [num_rows, num_chunks] float32, the largest logit of each chunk; infinite if one is NaN.
        ids: [num_rows, num_chunks] int32, its token id, the lowest of equals.
        group_max: [num_rows, num_groups] float32, the largest logit of each group of some tokens; None if it was not
            asked for.
    """

    values: Tensor
    ids: Tensor
    group_max: Tensor | None

    def select(self, rows: Tensor) -> ChunkBests:
        """Return copies of some rows' numbers."""
        group_max = None if self.group_max is None else self.group_max[rows]
        return ChunkBests(self.values[rows], self.ids[rows], group_max)


@dataclass(frozen=True, slots=True)
class DrawTable:
    """The rows that are left to chance, and their draws.

    Attributes:
        rows: [num_random] int32, which row of logits; those with top_k come first.
        temperatures: [num_random] float32, what logits are divided by.
        log_min_ps: [num_random] float32, logarithm of min_p; -inf is off.
        top_ks: [num_random] int32, below the number of drawable tokens; read of the first num_top_k.
        top_ps: [num_random] float64; read of owners of limited draws.
        seeds: [num_random] int64.
        positions: [num_random] int32, index of the token among the output tokens.
        owners: [num_draws] int32, index into the lists above; draws with top_p (limited ones) come first.
        slots: [num_draws] int32, where the token goes.
        children: [num_draws] int32.
        num_top_k: rows with top_k.
        max_top_k: the most of them, or more.
        num_limited: draws with top_p.
    """

    rows: Tensor
    temperatures: Tensor
    log_min_ps: Tensor
    top_ks: Tensor
    top_ps: Tensor
    seeds: Tensor
    positions: Tensor
    owners: Tensor
    slots: Tensor
    children: Tensor
    _: KW_ONLY
    num_top_k: int
    max_top_k: int
    num_limited: int


@dataclass(frozen=True, slots=True)
class PenaltyTable:
    """The rows with penalties, and the tokens that they are about.

    Attributes:
        rows: [num_penalized] int32, which row of logits.
        starts: [num_penalized] int64, where the row's tokens begin in token_ids.
        num_prompt_tokens, num_tokens: [num_penalized] int32.
        repetitions, frequencies, presences: [num_penalized] float32.
        token_ids: [all rows' tokens, with gaps] int32, prompt and output; those that can't be drawn are passed over.
        max_tokens: the most tokens of a row.
    """

    rows: Tensor
    starts: Tensor
    num_prompt_tokens: Tensor
    num_tokens: Tensor
    repetitions: Tensor
    frequencies: Tensor
    presences: Tensor
    token_ids: Tensor
    _: KW_ONLY
    max_tokens: int


@dataclass(frozen=True, slots=True)
class ReportTable:
    """The tokens whose logprobs are wanted.

    Attributes:
        rows: [num_reports] int32, which row of logits.
        slots: [num_reports] int32, where the token stands.
        num_tops: [num_reports] int32, how many of the row's best tokens are wanted with it.
        max_top: the most of them.
    """

    rows: Tensor
    slots: Tensor
    num_tops: Tensor
    _: KW_ONLY
    max_top: int


@dataclass(frozen=True, slots=True)
class Reports:
    """Logprobs of tokens, where they are to be written.

    Attributes:
        normalizers: [num_reports] float64, the logarithm of the sum of e^logit over the row.
        logprobs: [num_reports] float32.
        ranks: [num_reports] int32, 1 for the most likely token.
        top_ids: [num_reports, max_top] int32, the best tokens, in order; beyond a report's num_tops undefined.
        top_logprobs: [num_reports, max_top] float32; likewise.
    """

    normalizers: Tensor
    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
