"""What the kernels over rows of logits share: how a row is cut, how its tokens are ordered and what they weigh.

Tokens are ordered by score (logit / temperature), the lower id first among equals. What filters leave of a row is a
head of that order, told by its last token: the row's bound. Probabilities are added up as integers, so that a sum does
not depend on how it was cut.
"""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK = 4096
"""Tokens of a row that one program reads: 32 programs for a row of 128k, so that even one row finds many processors."""

GROUP = 32
"""Neighbouring tokens whose largest logit is kept: the best k tokens of a row lie in its best k groups."""

MAX_MASS_BITS = 44
"""A weight of 1 is at most 2^44 as an integer: the float32 weights from 2^-20 up are then exact."""


def num_chunks(num_drawable: int) -> int:
    """Return how many chunks a row has."""
    return -(-num_drawable // CHUNK)


def num_groups(num_drawable: int) -> int:
    """Return how many groups a row has."""
    return -(-num_drawable // GROUP)


def mass_bits(num_drawable: int) -> int:
    """Return how many bits a weight of 1 takes, so that a row's sum stays below 2^63."""
    return min(MAX_MASS_BITS, 62 - (num_drawable - 1).bit_length())


@triton.jit
def load_logits(row_logits: tl.tensor, ids: tl.tensor, row_stride: tl.tensor, num_drawable: tl.tensor) -> tl.tensor:
    """Return the logits of some tokens of a row; those that can't be drawn are -inf.

    All that the row has is read, its padding too: a row's length is a multiple of 16 in most models, so that a thread
    reads 16 bytes at once; the number of drawable tokens seldom is.
    """
    x = tl.load(row_logits + ids, mask=ids < row_stride, other=-float("inf"))
    return tl.where(ids < num_drawable, x, -float("inf"))


@triton.jit
def scores_of(logits: tl.tensor, temperature: tl.tensor) -> tl.tensor:
    """Return logits / temperature, rounded to the nearest, without negative zeros: they equal zero, but not in bits."""
    scores = tl.div_rn(logits, temperature)
    return tl.where(scores == 0.0, 0.0, scores)


@triton.jit
def ordered_bits(values: tl.tensor) -> tl.tensor:
    """Return int32 numbers that are ordered as the float32 values are; applied to them, as int32, their inverse."""
    bits = values.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(bits: tl.tensor) -> tl.tensor:
    """Return the float32 value whose `ordered_bits` these are."""
    bits = bits.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def is_up_to(scores: tl.tensor, ids: tl.tensor, bound_score: tl.tensor, bound_id: tl.tensor) -> tl.tensor:
    """Say which tokens do not come after the bound in the order; none if its score is NaN."""
    return (scores > bound_score) | ((scores == bound_score) & (ids <= bound_id))


@triton.jit
def masses_of(scores: tl.tensor, best_score: tl.tensor, counts: tl.tensor, MASS_BITS: tl.constexpr) -> tl.tensor:
    """Return e^(score - best) as an integer, 2^MASS_BITS for the best; 0 for tokens that don't count."""
    weights = tl.exp(scores - best_score) * 2.0**MASS_BITS
    return tl.where(counts, weights, 0.0).to(tl.int64)
