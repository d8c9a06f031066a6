"""Plain matrices to quantized ones, each number to the nearest that the layout can hold.

No calibration data is needed, and the result depends on the matrix alone. A scale is rounded (up) to the type that it
will be stored in before codes are made with it, so that no error comes from storing it. A matrix is rounded some rows
at a time, so that beside it and its copy a thread holds little.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.layouts import GROUP_SIZE, Fp8Weight, Int8Weight
from .row_chunks import row_chunks

_MAX_INT8 = 127
_MAX_FP8 = torch.finfo(torch.float8_e4m3fn).max


def round_to_int8(matrix: Tensor) -> Int8Weight:
    """Round to 8 bits, symmetric, a scale for each 32 input channels of a row.

    No number is off by more than half a step of its group, the group's largest magnitude / 127 (rounded up to float16).

    Args:
        matrix: [out_features, in_features] of any float dtype, in_features a multiple of 32.

    Raises:
        ValueError: if in_features is another number, or the matrix holds a NaN, an infinity, or numbers so large
            (beyond 8.3 million) that their scale is no float16.
    """
    all_codes, scales = [], []
    for rows in row_chunks(matrix):
        groups = _in_groups(rows, GROUP_SIZE)
        scale = _storable(groups.abs().amax(dim=2) / _MAX_INT8, torch.float16)
        codes = (groups / scale.unsqueeze(2)).round_().clamp_(-_MAX_INT8, _MAX_INT8).to(torch.int8)
        all_codes.append(codes.view(rows.shape))
        scales.append(scale.to(torch.float16))
    return Int8Weight(torch.cat(all_codes), torch.cat(scales))


def round_to_fp8(matrix: Tensor, *, scale_dtype: torch.dtype = torch.float32) -> Fp8Weight:
    """Round to float8_e4m3fn with a scale a row, which brings the row's largest magnitude to 448.

    No number is off by more than 1/16 of itself, or by the row's largest magnitude / 458,752 where that is more.

    Args:
        matrix: [out_features, in_features] of any float dtype.
        scale_dtype: that scales will be stored in: float16, bfloat16 or float32.

    Raises:
        ValueError: if the matrix holds a NaN or an infinity.
    """
    all_codes, scales = [], []
    for rows in row_chunks(matrix):
        scale = _storable(rows.abs().amax(dim=1, keepdim=True) / _MAX_FP8, scale_dtype)
        all_codes.append((rows / scale).clamp_(-_MAX_FP8, _MAX_FP8).to(torch.float8_e4m3fn))
        scales.append(scale)
    return Fp8Weight(torch.cat(all_codes), torch.cat(scales), tile_rows=1, tile_columns=matrix.shape[1])


def _in_groups(matrix: Tensor, group_size: int) -> Tensor:
    """[rows, channels] -> [rows, groups, group_size], float32."""
    out_features, in_features = matrix.shape
    if in_features % group_size:
        raise ValueError(f"{in_features} input channels can't be cut into groups of {group_size}")
    return matrix.float().reshape(out_features, in_features // group_size, group_size)


def _storable(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the next numbers of `dtype` that are not below the scales, as float32; 1 for those of zeros alone.

    Upwards: among float16's smallest numbers the next one below may be far too small for the group's largest code.
    """
    scale = torch.where(scale == 0, 1.0, scale)
    rounded = scale.to(dtype)
    if dtype.itemsize == 2:
        # The bits of positive numbers count up as the numbers do.
        above = (rounded.view(torch.int16) + 1).view(dtype)
        rounded = torch.where(rounded.float() < scale, above, rounded)
    if not rounded.isfinite().all():
        raise ValueError(f"the matrix holds a NaN, an infinity, or numbers too large for a scale in {dtype}")
    return rounded.float()
