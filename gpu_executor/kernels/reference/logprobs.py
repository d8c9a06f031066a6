"""Logarithms of a row's softmax: the normalizer is one float64 number, summed in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..draws import RowLogprobs
from .reductions import fixed_order_sum
from .token_order import best_indices, rank_of


def logprobs(logits: Tensor, token_ids: Sequence[int], num_top: int) -> RowLogprobs:
    """See `Ops.logprobs`. torch.log_softmax would pick the order of its sum by shape and thread count."""
    largest = logits.max()
    total = float(fixed_order_sum((logits - largest).exp_().to(torch.float64)))
    normalizer = float(largest) + math.log(total)
    asked = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
    top = asked[:0] if num_top == 0 else best_indices(logits, logits.shape[0] if num_top < 0 else num_top)
    return RowLogprobs(
        logprobs=_logprobs_of(logits[asked], normalizer),
        ranks=[rank_of(logits, token_id) for token_id in token_ids],
        top_token_ids=top.tolist(),
        top_logprobs=_logprobs_of(logits[top], normalizer),
    )


def _logprobs_of(logits: Tensor, normalizer: float) -> list[float]:
    values: list[float] = logits.to(torch.float64).sub_(normalizer).to(torch.float32).tolist()
    return values
