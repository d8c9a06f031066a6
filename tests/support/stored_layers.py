"""Linear layers as fp8 and compressed-tensors files store them, number by number from the formats' descriptions.

No line is shared with what reads them. Each comes with the values that it stands for, in float64.

Source: https://github.com/vllm-project/compressed-tensors; OCP 8-bit floating point (OFP8) for e4m3.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_ORDER_SEED = 7


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """What a file holds of a layer, by the last part of the tensors' names.

    Attributes:
        tensors: to be written.
        values: [out_features, in_features] float64, what its weight is.
    """

    tensors: dict[str, Tensor]
    values: Tensor


def packed_int(
    weight: Tensor, *, bits: int, group_size: int | None, is_symmetric: bool = True, has_permutation: bool = False
) -> StoredLayer:
    """Write a "pack-quantized" layer.

    Args:
        weight: [out_features, in_features].
        bits: of a code, 4 or 8.
        group_size: channels of a group; None: a row.
        is_symmetric: without zero points.
        has_permutation: give channels to groups at random.
    """
    codes, scales, zeros, group_of = _round(weight, bits, group_size, is_symmetric, has_permutation)
    offset = 2 ** (bits - 1)
    words = [_words([code + offset for code in row], bits) for row in codes]
    tensors = {
        "weight_packed": torch.tensor(words, dtype=torch.int32),
        "weight_scale": torch.tensor(scales, dtype=torch.float16),
        "weight_shape": torch.tensor(weight.shape, dtype=torch.int64),
    }
    if not is_symmetric:
        columns = [_words([row[group] + offset for row in zeros], bits) for group in range(len(zeros[0]))]
        tensors["weight_zero_point"] = torch.tensor(columns, dtype=torch.int32).t().contiguous()
    if has_permutation:
        tensors["weight_g_idx"] = torch.tensor(group_of, dtype=torch.int32)
    return StoredLayer(tensors, _values(codes, scales, zeros, group_of))


def int8(
    weight: Tensor, *, group_size: int | None = None, is_symmetric: bool = True, has_permutation: bool = False
) -> StoredLayer:
    """Write an "int-quantized" layer; arguments are those of `packed_int`."""
    codes, scales, zeros, group_of = _round(weight, 8, group_size, is_symmetric, has_permutation)
    tensors = {
        "weight": torch.tensor(codes, dtype=torch.int8),
        "weight_scale": torch.tensor(scales, dtype=torch.float16),
    }
    if not is_symmetric:
        tensors["weight_zero_point"] = torch.tensor(zeros, dtype=torch.int8)
    if has_permutation:
        tensors["weight_g_idx"] = torch.tensor(group_of, dtype=torch.int32)
    return StoredLayer(tensors, _values(codes, scales, zeros, group_of))


def fp8(weight: Tensor, block: tuple[int, int] | None = None, *, scale_name: str = "weight_scale") -> StoredLayer:
    """Write a layer of e4m3 numbers.

    Args:
        weight: [out_features, in_features].
        block: rows and columns that share a scale; None: all.
        scale_name: what the scales are called.
    """
    rows, columns = weight.shape
    block_rows, block_columns = block or (rows, columns)
    codes = np.zeros((rows, columns), dtype=np.uint8)
    values = np.zeros((rows, columns))
    scales = np.zeros((math.ceil(rows / block_rows), math.ceil(columns / block_columns)), dtype=np.float32)
    numbers = weight.double().numpy()
    for row in range(scales.shape[0]):
        for column in range(scales.shape[1]):
            place = (
                slice(row * block_rows, (row + 1) * block_rows),
                slice(column * block_columns, (column + 1) * block_columns),
            )
            scales[row, column] = np.abs(numbers[place]).max() / 448
            scale = np.float64(scales[row, column])  # as it is stored, in float32
            codes[place] = _e4m3_codes(numbers[place] / scale)
            values[place] = _E4M3[codes[place]] * scale
    stored = torch.from_numpy(scales)
    tensors = {
        "weight": torch.from_numpy(codes).view(torch.float8_e4m3fn),
        scale_name: stored.reshape(()) if block is None else stored,
    }
    return StoredLayer(tensors, torch.from_numpy(values))


def with_input_scale(layer: StoredLayer, shape: tuple[int, ...] = (1,)) -> StoredLayer:
    """Add what a file has of activations that are rounded with one scale for all."""
    return StoredLayer({**layer.tensors, "input_scale": torch.full(shape, 0.03)}, layer.values)


def _words(codes: Sequence[int], bits: int) -> list[int]:
    """Pack codes into words of 32 bits with a sign, the first in the lowest bits."""
    per_word = 32 // bits
    words = []
    for start in range(0, len(codes), per_word):
        word = sum(code << (bits * index) for index, code in enumerate(codes[start : start + per_word]))
        words.append(word - 2**32 if word >= 2**31 else word)
    return words


def _round(
    weight: Tensor, bits: int, group_size: int | None, is_symmetric: bool, has_permutation: bool
) -> tuple[list[list[int]], list[list[float]], list[list[int]], list[int]]:
    """Return signed codes by row, scales and signed zero points by row and group, and each channel's group."""
    rows, columns = weight.tolist(), weight.shape[1]
    group_of = [channel // (group_size or columns) for channel in range(columns)]
    if has_permutation:
        generator = torch.Generator().manual_seed(_ORDER_SEED)
        group_of = [group_of[index] for index in torch.randperm(columns, generator=generator).tolist()]
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    codes, scales, zeros = [], [], []
    for row in rows:
        members: list[list[float]] = [[] for _ in range(max(group_of) + 1)]
        for channel, value in enumerate(row):
            members[group_of[channel]].append(value)
        row_scales, row_zeros = [], []
        for group in members:
            least, most = min(0.0, *group), max(0.0, *group)
            scale = max(-least, most) / high if is_symmetric else (most - least) / (high - low)
            row_scales.append(float(np.float16(scale)))
            row_zeros.append(0 if is_symmetric else max(low, min(high, low - round(least / row_scales[-1]))))
        scales.append(row_scales)
        zeros.append(row_zeros)
        pairs = zip(row, group_of, strict=True)
        codes.append([max(low, min(high, round(value / row_scales[g]) + row_zeros[g])) for value, g in pairs])
    return codes, scales, zeros, group_of


def _values(codes: list[list[int]], scales: list[list[float]], zeros: list[list[int]], group_of: list[int]) -> Tensor:
    rows = [
        [scale[group] * (code - zero[group]) for code, group in zip(row, group_of, strict=True)]
        for row, scale, zero in zip(codes, scales, zeros, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _e4m3_value(bits: int) -> float:
    """One sign bit, four of exponent (biased by 7), three of mantissa; all ones is a NaN, and nothing is infinite."""
    sign, exponent, mantissa = -1 if bits >> 7 else 1, (bits >> 3) & 15, bits & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    magnitude = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return sign * magnitude


_E4M3 = np.array([_e4m3_value(bits) for bits in range(256)])
_MAGNITUDES = [_e4m3_value(bits) for bits in range(127)]  # ascending, as their bits are
_MIDPOINTS = [(a + b) / 2 for a, b in itertools.pairwise(_MAGNITUDES)]


def _e4m3_codes(numbers: np.ndarray) -> np.ndarray:
    """Return the bits of the nearest numbers (of two that are as near, either)."""
    codes = [bisect.bisect(_MIDPOINTS, abs(number)) | (128 if number < 0 else 0) for number in numbers.flat]
    return np.array(codes, dtype=np.uint8).reshape(numbers.shape)
