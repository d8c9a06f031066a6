"""What the ops at the end of a step take and give: rows of logits, how each is drawn from, and whose noise decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True, slots=True)
class OutputRows:
    """What the output layer gives for a step's rows.

    Attributes:
        best_values: [num_rows] the largest logit of each; NaN if any of the row is.
        best_ids: [num_rows] its token id, the lowest of equals.
        logits: [num_kept, num_drawable] float32, of the rows that are kept, in order; None if none is.
    """

    best_values: list[float]
    best_ids: list[int]
    logits: Tensor | None


@dataclass(frozen=True, slots=True)
class Filters:
    """Which tokens a draw chooses among: min_p, then top_k, then top_p, each on what the one before left.

    All are exact: tokens are ordered by value, the lower id first among equals, and a filter keeps a head of the order.
    `top_k` 0, `top_p` 1 and `min_p` 0 are off.
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


class NoiseKey(NamedTuple):
    """Whose noise it is.

    Attributes:
        seed: signed 64 bit.
        child: which child of its request.
        position: index of the token among the child's output tokens.
    """

    seed: int
    child: int
    position: int


@dataclass(frozen=True, slots=True)
class DrawRow:
    """One row of logits that is left to chance.

    Attributes:
        logits: [num_drawable] float32, contiguous; masked tokens are -inf, at least one is finite, none is NaN.
        temperature: what the logits are divided by, in float32.
        filters: which tokens stay.
        key: whose noise the first draw adds; the next draws are those of the next children.
        num_draws: draws from this one row.
    """

    logits: Tensor
    temperature: float
    filters: Filters
    key: NoiseKey
    num_draws: int = 1


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Logarithms of a row's softmax, float32 numbers exact in 64 bits.

    Attributes:
        logprobs: one for each token that was asked for.
        ranks: place of each in the order "larger logit first, of equals the lower id", 1 for the first.
        top_token_ids: the first tokens of that order.
        top_logprobs: theirs.
    """

    logprobs: list[float]
    ranks: list[int]
    top_token_ids: list[int]
    top_logprobs: list[float]
