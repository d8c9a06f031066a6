"""Integers whose scales, and zero points, are searched: those that leave each group the least squared error.

The grid that spans a group's numbers is the start. A finer one clips the few largest of them and lies closer to all
others, and zero points decide where it lies. Both are tried together, as the best of one depends on the other. Scales
are rounded to what will be stored before codes are chosen with them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..formats.quantized.integer_matrix import IntegerMatrix, even_groups
from .row_chunks import row_chunks

# What the scale that spans a group is multiplied by, in turn. With 8 bits, clipping costs more than it brings; but
# bfloat16's numbers are up to 0.8 % apart, and for a small group some neighbour fits better than the nearest. For rows
# it is the same: 3 % less squared error, and no less divergence.
_FACTORS = {4: tuple(1 - 0.02 * step for step in range(16)), 8: tuple(1.016 - 0.004 * step for step in range(9))}
_UNSEARCHED = (1.0,)
# Numbers tried at once: what a core's second-level cache holds with its temporaries; a fifth of the time of 4 million.
_CHUNK_VALUES = 1 << 17
_SMALLEST_SCALE = 2.0**-24  # of float16


def fit_integers(
    matrix: Tensor,
    *,
    bits: int,
    group_size: int | None,
    is_symmetric: bool,
    scale_dtypes: Sequence[torch.dtype],
    importance: Tensor | None = None,
) -> IntegerMatrix:
    """Round to integers, each group with the scale and zero point of those tried that leave the least squared error.

    Args:
        matrix: [out_features, in_features] of any float dtype.
        bits: of a code, 4 or 8.
        group_size: input channels of a group, which divide in_features; None: a row.
        is_symmetric: all zero points are 2^(bits - 1).
        scale_dtypes: each scale is rounded to them in turn; the last is what it is stored in.
        importance: [in_features] float32, positive: what squared errors of each input channel count; None: all alike.

    Raises:
        ValueError: if groups don't divide the rows, or the matrix holds a NaN, an infinity, or numbers so large that
            their scale is none of the last of `scale_dtypes`.
    """
    out_features, in_features = matrix.shape
    size = group_size or in_features
    if in_features % size:
        raise ValueError(f"{in_features} input channels can't be cut into groups of {size}")
    factors = _UNSEARCHED if bits == 8 and group_size is None else _FACTORS[bits]
    shares = None if importance is None else importance.view(in_features // size, size)
    found = [
        _fit_groups(
            rows.reshape(len(rows), in_features // size, size), bits, is_symmetric, scale_dtypes, factors, shares
        )
        for rows in row_chunks(matrix, _CHUNK_VALUES)
    ]
    codes, scale, zero = (torch.cat(parts) for parts in zip(*found, strict=True))
    return IntegerMatrix(bits, codes.view(out_features, in_features), scale, zero, even_groups(in_features, group_size))


def _fit_groups(
    groups: Tensor,
    bits: int,
    is_symmetric: bool,
    scale_dtypes: Sequence[torch.dtype],
    factors: Sequence[float],
    importance: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """[rows, num_groups, group_size] -> codes of that shape, uint8; scale and zero, [rows, num_groups]."""
    max_code = 2**bits - 1
    least, most = groups.amin(2, keepdim=True).clamp_(max=0), groups.amax(2, keepdim=True).clamp_(min=0)
    spread = 2 * torch.maximum(-least, most) if is_symmetric else most - least
    spread = torch.where(spread == 0, max_code, spread)  # of zeros alone: a scale of 1
    if not _stored(spread / max_code, scale_dtypes).isfinite().all():
        raise ValueError(f"the matrix holds a NaN, an infinity, or numbers too large for a scale in {scale_dtypes[-1]}")
    best_error = torch.full_like(spread, torch.inf)
    best_scale, best_zero, best_codes = torch.ones_like(spread), torch.zeros_like(spread), torch.zeros_like(groups)
    for factor in factors:
        scale = _stored(spread / max_code * factor, scale_dtypes)
        steps = groups / scale
        for zero in _zero_points(least, most, scale, bits, is_symmetric):
            codes = (steps + zero).round_().clamp_(0, max_code)
            squares = (codes - zero).sub_(steps).square_()
            if importance is not None:
                squares.mul_(importance)
            error = squares.sum(2, keepdim=True).mul_(scale.square())
            is_better = error < best_error
            best_error = torch.where(is_better, error, best_error)
            best_scale = torch.where(is_better, scale, best_scale)
            best_zero = torch.where(is_better, zero, best_zero)
            best_codes = torch.where(is_better, codes, best_codes)
    return best_codes.to(torch.uint8), best_scale.squeeze(2), best_zero.squeeze(2)


def _zero_points(least: Tensor, most: Tensor, scale: Tensor, bits: int, is_symmetric: bool) -> list[Tensor]:
    """Return those to try with a scale: on both sides of the one that lays the codes' middle on the numbers'."""
    if is_symmetric:
        return [torch.full_like(scale, 2 ** (bits - 1))]
    max_code = 2**bits - 1
    below = (max_code / 2 - (least + most) / (2 * scale)).floor_()
    return [below.clamp(0, max_code), (below + 1).clamp_(0, max_code)]


def _stored(scale: Tensor, dtypes: Sequence[torch.dtype]) -> Tensor:
    """Return the nearest numbers of the dtypes, as float32, none of them zero."""
    for dtype in dtypes:
        scale = scale.to(dtype)
    return scale.float().clamp_(min=_SMALLEST_SCALE)
