"""Quantized weights in the Triton kernels' own order: 16-bit words that unpack to neighbouring operand registers.

A program takes some rows of the matrix and walks along their channels, so the words of one *unit* of channels lie
together for all rows, and a tile of rows is one contiguous piece of memory. A word holds 4 codes of 4 bits or 2 of 8,
of channels that are WIDTH apart: field f of the words of a unit is a matrix [rows, WIDTH] of consecutive channels, and
as such the operand of a product, 16 bits a number as its operands are. Scales lie beside each other as one integer a
row and unit, so that a thread loads them at once.

| weight           | fields | width | channels of a unit | a row's scales of a unit                      |
|------------------|--------|-------|--------------------|-----------------------------------------------|
| 4-bit            | 4      | 16    | 64                 | scale, minimum, scale, minimum: fp16 in int64 |
| 8-bit, groups 32 | 2      | 32    | 64                 | the same, or scale, scale: fp16 in int32      |
| 8-bit, groups 16 | 2      | 16    | 32                 | the same                                      |
| fp8              | 2      | 32    | 64                 | none: fp32 by tile of channels                |

Fields of the first half of a word have the first scale, the others the second.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..layouts import GROUP_SIZE, Fp8Weight, Int4Weight, Int8Weight, LinearWeight

ROW_MULTIPLE = 128
"""Rows are padded with zeros to a multiple of it: no tile of rows needs a mask."""
UNIT_MULTIPLE = 2
"""Units likewise: a step of a product's loop takes so many."""
E4M3_SHIFT = 256.0
"""The bits of e4m3 read as float16, the exponent field widened by zeros, are the number divided by this."""
_E4M3_NAN = 0x7F


@dataclass(slots=True)
class PackedWeight(LinearWeight):
    """A quantized matrix of `num_rows` rows and `num_channels` channels.

    Attributes:
        words: [num_units, padded_rows, width] int16, contiguous.
        scales: [num_units, padded_rows] int64 (scale, minimum, scale, minimum) or int32 (scale, scale), float16 each,
            the first in the low bits; fp8: [num_tiles, padded_rows] float32, E4M3_SHIFT included.
        num_rows: rows that are real.
        num_channels: channels that are real.
        fields: codes of a word, 4 or 2.
        has_minimum: whether scales hold minima.
        tile_channels: fp8: channels that share a scale, a multiple of the channels of UNIT_MULTIPLE units, or all;
            otherwise 0.
        bias: [num_rows] float32, or None.
    """

    words: Tensor
    scales: Tensor
    num_rows: int
    num_channels: int
    fields: int
    has_minimum: bool
    tile_channels: int
    bias: Tensor | None = None

    @property
    def out_features(self) -> int:
        return self.num_rows

    @property
    def in_features(self) -> int:
        return self.num_channels

    @property
    def padded_rows(self) -> int:
        """Rows with their padding."""
        return self.words.shape[1]

    @property
    def num_units(self) -> int:
        """Units of channels, padding included."""
        return self.words.shape[0]

    @property
    def width(self) -> int:
        """Words of a row in a unit."""
        return self.words.shape[2]

    @property
    def unit_channels(self) -> int:
        """Channels of a unit."""
        return self.width * self.fields

    @property
    def is_float(self) -> bool:
        """Whether codes are e4m3 numbers."""
        return self.scales.dtype == torch.float32


def pack_int4(weight: Int4Weight) -> PackedWeight:
    """Pack a 4-bit weight: byte j of two neighbouring groups is word j."""
    num_rows, num_groups = weight.scale.shape
    pairs = _padded(weight.codes.view(num_rows, num_groups, GROUP_SIZE // 2), groups_of_unit=2)
    scales = _padded(torch.stack((weight.scale, weight.minimum), dim=2), groups_of_unit=2)
    return PackedWeight(
        words=_as_words(pairs),
        scales=_as_integers(scales),
        num_rows=num_rows,
        num_channels=weight.num_channels,
        fields=4,
        has_minimum=True,
        tile_channels=0,
        bias=weight.bias,
    )


def pack_int8(weight: Int8Weight) -> PackedWeight:
    """Pack an 8-bit weight: codes of two neighbouring groups in the halves of a word, 128 added to each."""
    num_rows, num_groups = weight.scale.shape
    unsigned = weight.codes.view(torch.uint8) ^ 0x80
    parts = [weight.scale] if weight.minimum is None else [weight.scale, weight.minimum]
    return PackedWeight(
        words=_as_words(_padded(unsigned.view(num_rows, num_groups, weight.group_size), groups_of_unit=2)),
        scales=_as_integers(_padded(torch.stack(parts, dim=2), groups_of_unit=2)),
        num_rows=num_rows,
        num_channels=weight.in_features,
        fields=2,
        has_minimum=weight.minimum is not None,
        tile_channels=0,
        bias=weight.bias,
    )


def pack_fp8(weight: Fp8Weight) -> PackedWeight:
    """Pack an fp8 weight; a scale a tile becomes one a row and tile of channels.

    A row with a NaN has NaN as its scale: kernels take the bits of a NaN for those of 480.
    """
    num_rows, in_features = weight.codes.shape
    codes = weight.codes.view(torch.uint8)
    num_groups = -(-in_features // GROUP_SIZE)
    padded = F.pad(codes, (0, num_groups * GROUP_SIZE - in_features)).view(num_rows, num_groups, GROUP_SIZE)
    scale = weight.scale.repeat_interleave(weight.tile_rows, dim=0)[:num_rows] * E4M3_SHIFT
    is_nan = ((codes & _E4M3_NAN) == _E4M3_NAN).any(dim=1)
    scale = torch.where(is_nan.unsqueeze(1), torch.nan, scale)
    scale = F.pad(scale, (0, 0, 0, _missing(num_rows, ROW_MULTIPLE)))
    return PackedWeight(
        words=_as_words(_padded(padded, groups_of_unit=2)),
        scales=scale.t().contiguous(),
        num_rows=num_rows,
        num_channels=in_features,
        fields=2,
        has_minimum=False,
        tile_channels=min(weight.tile_columns, in_features),
        bias=weight.bias,
    )


def _padded(groups: Tensor, *, groups_of_unit: int) -> Tensor:
    """[rows, groups, size] -> [padded rows, units, groups of a unit, size], what was added is zero."""
    num_rows, num_groups, size = groups.shape
    missing = _missing(num_groups, groups_of_unit * UNIT_MULTIPLE)
    padded = F.pad(groups, (0, 0, 0, missing, 0, _missing(num_rows, ROW_MULTIPLE)))
    return padded.view(padded.shape[0], -1, groups_of_unit, size)


def _as_words(units: Tensor) -> Tensor:
    """[rows, units, 2, width] uint8 -> [units, rows, width] int16, the bytes of the first group the low ones."""
    return units.permute(1, 0, 3, 2).contiguous().view(torch.int16).squeeze(3)


def _as_integers(scales: Tensor) -> Tensor:
    """[rows, units, 2, numbers] float16 -> [units, rows] int64 or int32, the first number in the low bits."""
    flat = scales.flatten(2).transpose(0, 1).contiguous()
    return flat.view(torch.int64 if flat.shape[2] == 4 else torch.int32).squeeze(2)


def _missing(number: int, multiple: int) -> int:
    return -number % multiple
