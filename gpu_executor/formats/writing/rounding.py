"""Rounding matrices to integers for a file: groups by least squares, scales that a file can hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ...quantization.round_to_nearest import round_to_integers
from ..quantized.integer_matrix import IntegerMatrix
from .packing import scale_dtype

# What each group's scale is multiplied by, in turn. A smaller one clips the few largest weights of a group and has a
# finer step for all others.
_SEARCHED = tuple(1.0 - 0.02 * step for step in range(16))
# With 8 bits, steps are so fine that clipping anything costs more.
_UNSEARCHED = (1.0,)
_CHUNK_VALUES = 1 << 22  # rounded at a time: temporaries stay at some 100 MB


def round_matrix(matrix: Tensor, *, bits: int, group_size: int | None, is_symmetric: bool) -> IntegerMatrix:
    """Round a matrix; each group gets the scale of those tried that leaves the least squared error.

    Args:
        matrix: [out_features, in_features], float32, float16 or bfloat16.
        bits: 4 or 8.
        group_size: input channels that share a scale, a divisor of in_features; None: a row.
        is_symmetric: zero points are half the range.
    """
    factors = _SEARCHED if bits == 4 else _UNSEARCHED
    parts = []
    stored = scale_dtype(matrix.dtype)
    for rows in row_chunks(matrix):
        start = round_to_integers(rows, bits=bits, group_size=group_size, is_symmetric=is_symmetric, scale_dtype=stored)
        parts.append(refit(rows, start, factors, stored))
    return IntegerMatrix(
        bits=bits,
        codes=torch.cat([part.codes for part in parts]),
        scale=torch.cat([part.scale for part in parts]),
        zero=torch.cat([part.zero for part in parts]),
        group_of=parts[0].group_of,
    )


def row_chunks(matrix: Tensor) -> Iterator[Tensor]:
    """Yield some rows at a time, in float32."""
    num_rows = max(1, _CHUNK_VALUES // matrix.shape[1])
    for first in range(0, matrix.shape[0], num_rows):
        yield matrix[first : first + num_rows].float()


def refit(matrix: Tensor, start: IntegerMatrix, factors: Sequence[float], dtype: torch.dtype) -> IntegerMatrix:
    """Choose codes again for multiples of each group's scale, and keep the best.

    Args:
        matrix: [out_features, in_features] float32.
        start: the same, rounded with even groups; zero points stay as they are.
        factors: that scales are multiplied by.
        dtype: whose numbers scales are rounded to.
    """
    rows, num_groups = start.scale.shape
    wanted = matrix.view(rows, num_groups, -1)
    zero = start.zero.unsqueeze(2)
    best_error = torch.full((rows, num_groups), torch.inf)
    best_scale = torch.zeros_like(start.scale)
    best_codes = torch.empty_like(wanted)
    for factor in factors:
        scale = (start.scale * factor).to(dtype).float()
        codes = wanted.div(scale.unsqueeze(2)).add_(zero).round_().clamp_(0, 2**start.bits - 1)
        error = codes.sub(zero).mul_(scale.unsqueeze(2)).sub_(wanted).square_().sum(2)
        is_better = error < best_error
        best_error = torch.where(is_better, error, best_error)
        best_scale = torch.where(is_better, scale, best_scale)
        best_codes = torch.where(is_better.unsqueeze(2), codes, best_codes)
    return IntegerMatrix(
        bits=start.bits,
        codes=best_codes.view_as(matrix).to(torch.uint8),
        scale=best_scale,
        zero=start.zero,
        group_of=start.group_of,
    )
