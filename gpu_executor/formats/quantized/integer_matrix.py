"""A matrix of integers with scales and zero points: what every integer packing is once its bits are taken apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels.layouts import GROUP_SIZE, Int4Weight, Int8Weight

# Numbers that are worked out at a time: three times as many bytes as a matrix in float32 would else be in between.
_CHUNK_VALUES = 1 << 20


@dataclass(frozen=True, slots=True)
class IntegerMatrix:
    """weight = scale * (code - zero), scale and zero those of the group that the input channel belongs to.

    Attributes:
        bits: of a code, at most 8.
        codes: [out_features, in_features] uint8, 0 to 2^bits - 1.
        scale: [out_features, num_groups] float32.
        zero: [out_features, num_groups] float32, whole numbers.
        group_of: [in_features] int64, the group of each input channel.
    """

    bits: int
    codes: Tensor
    scale: Tensor
    zero: Tensor
    group_of: Tensor

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the matrix; see `copy_to`."""
        values = torch.empty(self.codes.shape, dtype=dtype)
        self.copy_to(values)
        return values

    def copy_to(self, destination: Tensor) -> None:
        """Write the matrix: differences are exact, products rounded to float32, and then to the destination's type.

        Args:
            destination: [out_features, in_features] of any float dtype.
        """
        num_rows = max(1, _CHUNK_VALUES // max(1, self.codes.shape[1]))
        for begin in range(0, self.codes.shape[0], num_rows):
            rows = slice(begin, begin + num_rows)
            values = self.codes[rows].float().sub_(self.zero[rows].index_select(1, self.group_of))
            destination[rows] = values.mul_(self.scale[rows].index_select(1, self.group_of))

    def to_grouped(self) -> Int4Weight | Int8Weight | None:
        """Return the canonical layout that holds the codes; None if none does, and the matrix must become a dense one.

        Scales, and what zero points come to (a minimum of -scale * zero), are rounded to float16: one part in 2048, or
        3e-8 where that is more. Of the step between two codes that is at most 0.4 % for 4 bits and 3 % for 8.

        None if a scale or a minimum leaves float16, if groups are no multiples of 32 channels, or if 8-bit rows are
        none.
        """
        order = _order_by_group(self.group_of)
        codes, group_of = self.codes, self.group_of
        if order is not None:
            codes, group_of = codes.index_select(1, order), group_of.index_select(0, order)
        in_features = codes.shape[1]
        groups = _group_of_each_32(group_of)
        if groups is None or not _holds_columns(in_features, self.bits):
            return None
        scale = self.scale.to(torch.float16)
        center = 0 if self.bits <= 4 else 128  # of the canonical codes, in these
        minimum = (self.scale * (center - self.zero)).to(torch.float16)
        if not (scale.isfinite().all() and minimum.isfinite().all()):
            return None
        scale, minimum = scale.index_select(1, groups), minimum.index_select(1, groups)
        permutation = None if order is None else order.to(torch.int32)
        if self.bits <= 4:
            return Int4Weight(_pack_nibbles(codes), scale, minimum, in_features, permutation=permutation)
        has_minimum = bool(minimum.any())
        signed = (codes ^ 0x80).view(torch.int8)
        return Int8Weight(signed, scale, minimum if has_minimum else None, permutation=permutation)


def holds_groups(group_of: Tensor, bits: int) -> bool:
    """Return whether `IntegerMatrix.to_grouped` has a layout for groups, whatever their scales are.

    Args:
        group_of: [in_features] int64, the group of each input channel.
        bits: of a code.
    """
    ordered = group_of.sort().values
    return _holds_columns(len(ordered), bits) and _group_of_each_32(ordered) is not None


def even_groups(in_features: int, group_size: int | None) -> Tensor:
    """Return the group of each input channel where groups are runs of `group_size` channels; None: one group."""
    return torch.arange(in_features) // (group_size or in_features)


def _holds_columns(in_features: int, bits: int) -> bool:
    return bits <= 4 or in_features % GROUP_SIZE == 0


def _order_by_group(group_of: Tensor) -> Tensor | None:
    """Return the channels group by group, or None if they are in that order."""
    if bool((group_of.diff() >= 0).all()):
        return None
    return group_of.argsort(stable=True)


def _group_of_each_32(group_of: Tensor) -> Tensor | None:
    """Return the group of each run of 32 channels, or None if one has channels of several."""
    first = group_of[::GROUP_SIZE]
    repeated = first.repeat_interleave(GROUP_SIZE)[: len(group_of)]
    return first if torch.equal(repeated, group_of) else None


def _pack_nibbles(codes: Tensor) -> Tensor:
    """[rows, channels] -> [rows, channels / 2]: channels j and j + 16 of a group in byte j of it."""
    whole = F.pad(codes, (0, -codes.shape[1] % GROUP_SIZE))
    halves = whole.view(len(whole), whole.shape[1] // GROUP_SIZE, 2, GROUP_SIZE // 2)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1)
