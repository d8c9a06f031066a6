"""Which experts compute a token, and how much of it each: by torch on any device, the same for every backend."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .reference.reductions import fixed_order_sum


class ExpertChoice(NamedTuple):
    """The experts of each token.

    Attributes:
        expert_ids: [num_tokens, num_chosen] int64, ascending.
        weights: [num_tokens, num_chosen] float32, what each expert's output is multiplied by.
    """

    expert_ids: Tensor
    weights: Tensor


def choose_experts(logits: Tensor, num_chosen: int, *, is_renormalized: bool) -> ExpertChoice:
    """Choose the likeliest experts of each token, the lower number first among equals.

    A token's choice depends on its own logits alone, to the last bit.

    Args:
        logits: [num_tokens, num_experts], any float dtype, as the router gives them.
        num_chosen: experts a token.
        is_renormalized: weights are divided by their sum.

    Source: Shazeer et al. 2017 (arXiv 1701.06538); Jiang et al. 2024 (arXiv 2401.04088).
    """
    values = logits.float()
    exponentials = (values - values.amax(dim=-1, keepdim=True)).exp()
    probabilities = exponentials / fixed_order_sum(exponentials).unsqueeze(-1)
    best = torch.sort(probabilities, dim=-1, descending=True, stable=True).indices[:, :num_chosen]
    expert_ids = best.sort(dim=-1).values
    weights = probabilities.gather(1, expert_ids)
    if is_renormalized:
        weights = weights / fixed_order_sum(weights).unsqueeze(-1)
    return ExpertChoice(expert_ids, weights)
