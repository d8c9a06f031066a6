"""Integers that leave a layer's *outputs* near, not its weights: GPTQ.

A row's squared error along some inputs x is (w - q) M (w - q)^T, where M is the mean of x x^T. Input channels are
rounded one by one, and what each loses is made up for by those that are not rounded yet, as M says that they go
together. Scales and zero points are searched first, and stay: so channels may be taken in any order, the strongest
first, while files keep theirs.

Source: Frantar et al. 2022, "GPTQ" (arXiv 2210.17323).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..formats.quantized.integer_matrix import IntegerMatrix
from .least_squares import fit_integers

# Of the mean second moment, added to all: channels that few inputs tell apart would else make up for one another by
# steps without bounds.
_DAMPING = 0.01
# Input channels whose errors are gathered before they are handed on to all later ones, in one product.
_BLOCK = 64


def fit_integers_to_inputs(
    matrix: Tensor,
    moments: Tensor,
    *,
    bits: int,
    group_size: int | None,
    is_symmetric: bool,
    scale_dtypes: Sequence[torch.dtype],
) -> IntegerMatrix:
    """Round to integers, so that products with some inputs change little.

    Scales and zero points are those of `fit_integers` for squared errors that count by the inputs' squares. Beside the
    matrix it takes 3 more of its size in float32, and 4 of the moments' in float64.

    Args:
        matrix: [out_features, in_features] of any float dtype.
        moments: [in_features, in_features] float32: the mean of x x^T over inputs x.
        bits: of a code, 4 or 8.
        group_size: as of `fit_integers`, like what follows.
        is_symmetric: likewise.
        scale_dtypes: likewise.

    Raises:
        ValueError: as of `fit_integers`; or if the moments hold a NaN or an infinity.
    """
    if not moments.isfinite().all():
        raise ValueError("its inputs hold a NaN or an infinity")
    strength = moments.diagonal()
    damped = moments.double()
    mean = damped.diagonal().mean()
    damped.diagonal().add_(torch.where(mean > 0, _DAMPING * mean, 1.0))  # of inputs that are all zero: no feedback
    fitted = fit_integers(
        matrix,
        bits=bits,
        group_size=group_size,
        is_symmetric=is_symmetric,
        scale_dtypes=scale_dtypes,
        importance=damped.diagonal().float(),
    )
    order = strength.argsort(descending=True, stable=True)
    feedback = _feedback(damped[order][:, order])
    codes = torch.empty_like(fitted.codes)
    codes[:, order] = _round_in_turn(matrix.float()[:, order], feedback, fitted, order).t()
    return replace(fitted, codes=codes)


def _feedback(moments: Tensor) -> Tensor:
    """[in_features, in_features] float64 -> U float32, upper triangular: U^T U is the inverse of the moments.

    Row i, divided by its diagonal, is what later channels must change by where channel i is off by one.
    """
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments))
    upper: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return upper.float()


def _round_in_turn(matrix: Tensor, feedback: Tensor, grid: IntegerMatrix, order: Tensor) -> Tensor:
    """Choose the codes of one input channel after the other.

    Args:
        matrix: [out_features, in_features] float32, its channels in the order in which they are rounded.
        feedback: of these channels, as `_feedback` returns it.
        grid: whose scales and zero points are kept.
        order: [in_features] int64, the place of each of these channels in the grid.

    Returns:
        [in_features, out_features] uint8.
    """
    left = matrix.t().contiguous()  # channel by channel: what is still to be rounded of each
    scales, zeros = grid.scale.t().contiguous(), grid.zero.t().contiguous()
    group_of = grid.group_of[order].tolist()
    codes = torch.empty(left.shape, dtype=torch.uint8)
    for first in range(0, len(left), _BLOCK):
        block = left[first : first + _BLOCK]
        within = feedback[first : first + _BLOCK, first : first + _BLOCK]
        errors = torch.empty_like(block)
        for index, values in enumerate(block):
            scale, zero = scales[group_of[first + index]], zeros[group_of[first + index]]
            chosen = (values / scale).add_(zero).round_().clamp_(0, 2**grid.bits - 1)
            codes[first + index] = chosen
            torch.sub(values, chosen.sub_(zero).mul_(scale), out=errors[index]).div_(within[index, index])
            block[index + 1 :].addr_(within[index, index + 1 :], errors[index], alpha=-1)
        left[first + _BLOCK :].addmm_(feedback[first : first + _BLOCK, first + _BLOCK :].t(), errors, alpha=-1)
    return codes
