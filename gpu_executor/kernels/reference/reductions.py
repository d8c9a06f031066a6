"""Sums whose order is written down here, not left to a library."""

from __future__ import annotations

from torch import Tensor


def fixed_order_sum(x: Tensor) -> Tensor:
    """Sum the last dimension by halving it, so that the order depends on its size alone.

    torch's own reductions choose an order by shape, strides and thread count. Elementwise additions are exact to the
    last bit by IEEE 754, whichever code path runs them.

    Args:
        x: [..., size] float32, size at least 1.

    Returns:
        [...] float32.
    """
    size = x.shape[-1]
    while size > 1:
        half = (size + 1) // 2
        folded = x[..., :half].clone() if size % 2 else x[..., :half]
        if size % 2:
            folded[..., : half - 1] += x[..., half:]
        else:
            folded = folded + x[..., half:]
        x, size = folded, half
    return x[..., 0]
