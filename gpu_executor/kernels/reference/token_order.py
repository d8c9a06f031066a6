"""The one order of a row's tokens that everything here uses: larger value first, of equal values the lower token id."""

from __future__ import annotations

import torch
from torch import Tensor


def best_indices(values: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` first entries, in order; ties are settled by the lower index.

    torch.topk alone leaves the choice among equal values, and their order, to the kernel.

    Args:
        values: [size] floating point, no NaN.
        count: at least 1.

    Returns:
        [min(count, size)] int64.
    """
    if count >= values.shape[0]:
        return values.sort(descending=True, stable=True).indices
    threshold = values.topk(count, sorted=False).values.min()
    candidates = (values >= threshold).nonzero().squeeze(-1)
    order = values[candidates].sort(descending=True, stable=True).indices
    return candidates[order[:count]]


def rank_of(values: Tensor, index: int) -> int:
    """Return the place of one entry in the order, 1 for the first."""
    value = values[index]
    num_larger = torch.count_nonzero(values > value)
    num_equal_before = torch.count_nonzero(values[:index] == value)
    return 1 + int(num_larger + num_equal_before)
