"""From canonical weights to what the native kernels multiply: dense and grouped parts in one order of channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from ...quantization.round_to_nearest import round_to_int8
from ..layouts import GROUP_SIZE, DenseWeight, Fp8Weight, Int4Weight, Int8Weight, LinearWeight, StackedWeight
from ..reference.dequantize import dequantize_rows

KernelLayout: TypeAlias = DenseWeight | Int4Weight | Int8Weight
"""What a part of a packed weight may be made of."""

_BLOCK_ROWS = 2048  # unpacked at once: a whole weight would take four times the memory that 8 bits do


def in_kernel_layouts(weight: LinearWeight) -> tuple[list[KernelLayout], Tensor | None]:
    """Return a weight's parts, rows below each other, and the order of input channels that all their columns are in.

    Dense and grouped parts stay what they are, with two exceptions:

    - 8-bit floats become 8-bit integers by groups of 32 channels: the integer kernels are the fastest that read 8 bits
      a weight. Such a weight is off by up to 1/254 of the largest of its group, and the scale's rounding to float16;
      e4m3 itself is off by up to 1/16 of each number. Rows that are no whole groups become bfloat16: 1 part in 256.
    - Of grouped parts with different permutations, those keep their groups whose order most rows have. The others
      become float16, one part in 2048 off (or 3e-8, where that is more): what their scales were rounded to, too. If
      float16 can't hold them, they become float32.

    Args:
        weight: any canonical layout.

    Returns:
        The parts, whose own permutations don't count any more; and that of their columns, [in_features] int32, or None:
        they are in the order of input channels.

    Raises:
        TypeError: the layout is unknown here.
    """
    parts = list(_known_parts(weight))
    order = _commonest_order(parts)
    return [_in_order(part, order) for part in parts], order


def _known_parts(weight: LinearWeight) -> Iterator[KernelLayout]:
    match weight:
        case StackedWeight(parts=parts):
            for part in parts:
                yield from _known_parts(part)
        case Fp8Weight():
            yield _round_fp8(weight)
        case DenseWeight() | Int4Weight() | Int8Weight():
            yield weight
        case _:
            raise TypeError(f"the CPU kernels don't know the layout {type(weight).__name__}")


def _round_fp8(weight: Fp8Weight) -> DenseWeight | Int8Weight:
    if weight.in_features % GROUP_SIZE:
        return DenseWeight(_unpack(weight, torch.bfloat16), weight.bias)
    blocks = [round_to_int8(rows) for rows in _row_blocks(weight)]
    codes, scale = (torch.cat(parts) for parts in ([b.codes for b in blocks], [b.scale for b in blocks]))
    return Int8Weight(codes, scale, bias=weight.bias)


def _unpack(weight: Fp8Weight | Int4Weight | Int8Weight, dtype: torch.dtype) -> Tensor:
    return torch.cat([rows.to(dtype) for rows in _row_blocks(weight)])


def _row_blocks(weight: Fp8Weight | Int4Weight | Int8Weight) -> Iterator[Tensor]:
    """Yield the matrix as float32, some rows at a time."""
    for begin in range(0, weight.out_features, _BLOCK_ROWS):
        yield dequantize_rows(weight, torch.arange(begin, min(begin + _BLOCK_ROWS, weight.out_features)))


def _commonest_order(parts: Sequence[KernelLayout]) -> Tensor | None:
    """Return the permutation that most rows of grouped parts have; the first one's of several."""
    num_rows: dict[bytes | None, int] = {}
    orders: dict[bytes | None, Tensor | None] = {}
    for part in parts:
        if not isinstance(part, DenseWeight):
            key = _key_of(part.permutation)
            num_rows[key] = num_rows.get(key, 0) + part.out_features
            orders[key] = part.permutation
    return orders[max(num_rows, key=num_rows.__getitem__)] if num_rows else None


def _in_order(part: KernelLayout, order: Tensor | None) -> KernelLayout:
    """Return a part whose column j is of input channel order[j]."""
    if not isinstance(part, DenseWeight):
        if _key_of(part.permutation) == _key_of(order):
            return part
        halves = _unpack(part, torch.float16)
        is_held = bool(halves.isfinite().all())
        part = DenseWeight(halves if is_held else _unpack(part, torch.float32), part.bias)
    return part if order is None else DenseWeight(part.weight.index_select(1, order.long()), part.bias)


def _key_of(permutation: Tensor | None) -> bytes | None:
    return None if permutation is None else permutation.numpy().tobytes()
