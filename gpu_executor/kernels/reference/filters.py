"""Which tokens a draw chooses among: see `Filters`.

A row alone decides: the same logits give the same candidates in any batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..draws import Filters
from .reductions import fixed_order_sum
from .token_order import best_indices

# Tokens that are sorted first when top_p looks for its border, and how that grows. A language model's mass mostly lies
# in few tokens, and selecting 256 of 49,152 takes 0.2 ms against 5 ms for a full sort (2 cores, torch 2.13).
_FIRST_NUCLEUS = 256
_NUCLEUS_GROWTH = 16


def candidates(filters: Filters, scores: Tensor) -> Tensor | None:
    """Return the token ids that stay, or None where no filter applies to this row.

    Args:
        filters: the row's filters.
        scores: [vocab_size] float32, logits divided by the temperature; masked tokens are -inf, at least one is
            finite.

    Returns:
        [num_candidates] int64, at least one, in no promised order.
    """
    token_ids: Tensor | None = None
    if filters.min_p > 0:
        # p_i >= min_p * p_max, without computing a probability.
        token_ids = (scores >= scores.max() + math.log(filters.min_p)).nonzero().squeeze(-1)
    if 0 < filters.top_k < (scores if token_ids is None else token_ids).shape[0]:
        token_ids = _narrow(token_ids, best_indices(_values(scores, token_ids), filters.top_k))
    if filters.top_p < 1:
        token_ids = _narrow(token_ids, _nucleus(_values(scores, token_ids), filters.top_p))
    return token_ids


def _values(scores: Tensor, token_ids: Tensor | None) -> Tensor:
    return scores if token_ids is None else scores[token_ids]


def _narrow(token_ids: Tensor | None, kept: Tensor) -> Tensor:
    return kept if token_ids is None else token_ids[kept]


def _nucleus(values: Tensor, top_p: float) -> Tensor:
    """Return the indices of the smallest head of the order whose probability reaches `top_p`; at least one."""
    weights = (values - values.max()).exp_().to(torch.float64)
    target = float(fixed_order_sum(weights)) * top_p
    size, count = values.shape[0], min(_FIRST_NUCLEUS, values.shape[0])
    while True:
        head = best_indices(values, count)
        # float64 sums of a few thousand float32 weights: the border is exact to far below one weight.
        reached = weights[head].cumsum(-1) >= target
        first = int(reached.to(torch.uint8).argmax())
        if reached[first]:
            return head[: first + 1]
        if count == size:  # rounding alone can leave the whole sum below the target
            return head
        count = min(count * _NUCLEUS_GROWTH, size)
