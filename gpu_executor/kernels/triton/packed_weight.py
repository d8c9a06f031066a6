"""Quantized weights in the Triton kernels' own order: 16-bit words that unpack to neighbouring operand registers.

A program takes some rows of the matrix and walks along their channels, so the words of one *unit* of channels lie
together for all rows, and a tile of rows is one contiguous piece of memory. A word holds 4 codes of 4 bits or 2 of 8,
of channels that are WIDTH apart: field f of the words of a unit is a matrix [rows, WIDTH] of consecutive channels, and
as such the operand of a product, 16 bits a number as its operands are. Two units are a step of a product's loop.

| weight           | fields | width | channels of a unit |
|------------------|--------|-------|--------------------|
| 4-bit            | 4      | 16    | 64                 |
| 8-bit, groups 32 | 2      | 32    | 64                 |
| 8-bit, groups 16 | 2      | 16    | 32                 |
| fp8              | 2      | 32    | 64                 |

The scales of integers lie beside each other as one integer a row and entry, so that a thread loads them at once. A
unit is two groups, one in each half of a word. Formats of larger groups repeat their scales, and what is alike over
all of a unit, or of a step, is kept once: at 4 bits that makes 5, 4.5 or 4.25 bits a weight of which all are read.

| alike in all rows | an entry is of | with minima: fp16 in ...              | without: fp16 in ... |
|-------------------|----------------|---------------------------------------|----------------------|
| nothing           | a unit         | scale, minimum, scale, minimum: int64 | scale, scale: int32  |
| a unit's halves   | a unit         | scale, minimum: int32                 | scale: int16         |
| a step's units    | a step         | scale, minimum: int32                 | scale: int16         |

The scales of fp8 are float32, an entry a tile of channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..layouts import FP8_TILE, GROUP_SIZE, Fp8Weight, Int4Weight, Int8Weight, LinearWeight

ROW_MULTIPLE = 128
"""Rows are padded with zeros to a multiple of it: no tile of rows needs a mask."""
UNIT_MULTIPLE = 2
"""Units likewise: a step of a product's loop takes so many."""
_GROUPS_OF_UNIT = 2
MAX_SCALE_GROUP = UNIT_MULTIPLE * _GROUPS_OF_UNIT * GROUP_SIZE
"""Channels of a step: what is alike over all of them is kept once."""
E4M3_SHIFT = 256.0
"""The bits of e4m3 read as float16, the exponent field widened by zeros, are the number divided by this."""
_E4M3_NAN = 0x7F


@dataclass(slots=True)
class PackedWeight(LinearWeight):
    """A quantized matrix of `num_rows` rows and `num_channels` channels.

    Attributes:
        words: [num_units, padded_rows, width] int16, contiguous.
        scales: [num_entries, padded_rows] int64, int32 or int16, made of float16 numbers, the first in the low bits;
            fp8: float32, E4M3_SHIFT included.
        num_rows: rows that are real.
        num_channels: channels that are real.
        fields: codes of a word, 4 or 2.
        has_minimum: whether scales hold minima.
        scale_channels: channels of an entry of scales: those of a unit or of a step, or of all units.
        bias: [num_rows] float32, or None.
        permutation: [num_channels] int64: column j multiplies input channel permutation[j]; None: channel j. Products
            gather their activations first, so that kernels need not know.
    """

    words: Tensor
    scales: Tensor
    num_rows: int
    num_channels: int
    fields: int
    has_minimum: bool
    scale_channels: int
    bias: Tensor | None = None
    permutation: Tensor | None = None

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
    def step_channels(self) -> int:
        """Channels of a step of a product's loop."""
        return UNIT_MULTIPLE * self.unit_channels

    @property
    def is_float(self) -> bool:
        """Whether codes are e4m3 numbers."""
        return self.scales.dtype == torch.float32


def pack_int4(weight: Int4Weight) -> PackedWeight:
    """Pack a 4-bit weight: byte j of two neighbouring groups is word j."""
    num_rows, num_groups = weight.scale.shape
    scales, groups_of_entry = _pack_scales(torch.stack((weight.scale, weight.minimum), dim=2))
    return PackedWeight(
        words=_as_words(_padded(weight.codes.view(num_rows, num_groups, GROUP_SIZE // 2))),
        scales=scales,
        num_rows=num_rows,
        num_channels=weight.num_channels,
        fields=4,
        has_minimum=True,
        scale_channels=groups_of_entry * GROUP_SIZE,
        bias=weight.bias,
        permutation=_as_index(weight.permutation),
    )


def pack_int8(weight: Int8Weight) -> PackedWeight:
    """Pack an 8-bit weight: codes of two neighbouring groups in the halves of a word, 128 added to each."""
    num_rows, num_groups = weight.scale.shape
    codes = _padded(weight.codes.view(torch.uint8).view(num_rows, num_groups, weight.group_size))
    parts = [weight.scale] if weight.minimum is None else [weight.scale, weight.minimum]
    scales, groups_of_entry = _pack_scales(torch.stack(parts, dim=2))
    return PackedWeight(
        words=_as_words(codes ^ 0x80),
        scales=scales,
        num_rows=num_rows,
        num_channels=weight.in_features,
        fields=2,
        has_minimum=weight.minimum is not None,
        scale_channels=groups_of_entry * weight.group_size,
        bias=weight.bias,
        permutation=_as_index(weight.permutation),
    )


def pack_fp8(weight: Fp8Weight) -> PackedWeight:
    """Pack an fp8 weight; a scale a tile becomes one a row and tile of channels.

    A row with a NaN has NaN as its scale: kernels take the bits of a NaN for those of 480.

    Raises:
        ValueError: tiles are narrower than a row and not FP8_TILE columns wide: kernels look for a scale a step of that
            many channels.
    """
    num_rows, in_features = weight.codes.shape
    if weight.tile_columns < in_features and weight.tile_columns != FP8_TILE:
        raise ValueError(
            f"tiles of {weight.tile_columns} columns: kernels take {FP8_TILE}, or all {in_features} of a row"
        )
    codes = weight.codes.view(torch.uint8)
    num_groups = -(-in_features // GROUP_SIZE)
    padded = F.pad(codes, (0, num_groups * GROUP_SIZE - in_features)).view(num_rows, num_groups, GROUP_SIZE)
    scale = weight.scale.repeat_interleave(weight.tile_rows, dim=0)[:num_rows] * E4M3_SHIFT
    is_nan = ((codes & _E4M3_NAN) == _E4M3_NAN).any(dim=1)
    scale = torch.where(is_nan.unsqueeze(1), torch.nan, scale)
    scale = F.pad(scale, (0, 0, 0, _missing(num_rows, ROW_MULTIPLE)))
    return PackedWeight(
        words=_as_words(_padded(padded)),
        scales=scale.t().contiguous(),
        num_rows=num_rows,
        num_channels=in_features,
        fields=2,
        has_minimum=False,
        scale_channels=min(weight.tile_columns, in_features),
        bias=weight.bias,
    )


def _pack_scales(numbers: Tensor) -> tuple[Tensor, int]:
    """[rows, groups, numbers of a group] float16 -> entries as integers, and how many groups each is of."""
    for groups_of_entry in (_GROUPS_OF_UNIT * UNIT_MULTIPLE, _GROUPS_OF_UNIT):
        alike = _alike(numbers, groups_of_entry)
        if alike is not None:
            # Of units that fill up a step nobody looks at the scales but the kernels: their activations are zeros.
            rest = _missing(numbers.shape[1], _GROUPS_OF_UNIT * UNIT_MULTIPLE) // groups_of_entry
            entries = F.pad(alike, (0, 0, 0, rest, 0, _missing(len(alike), ROW_MULTIPLE)))
            return _as_integers(entries), groups_of_entry
    return _as_integers(_padded(numbers).flatten(2)), _GROUPS_OF_UNIT


def _alike(numbers: Tensor, groups_of_entry: int) -> Tensor | None:
    """[rows, groups, numbers] -> [rows, entries, numbers], or None if the groups of some entry differ."""
    missing = _missing(numbers.shape[1], groups_of_entry)
    # Groups that only fill up the last entry are as those before them: their activations are zeros.
    filled = torch.cat((numbers, numbers[:, -1:].expand(-1, missing, -1)), dim=1)
    entries = filled.view(filled.shape[0], -1, groups_of_entry, filled.shape[2])
    first = entries[:, :, :1]
    return first.squeeze(2) if torch.equal(entries, first.expand_as(entries)) else None


def _padded(groups: Tensor) -> Tensor:
    """[rows, groups, size] -> [padded rows, units, groups of a unit, size], what was added is zero."""
    num_rows, num_groups, size = groups.shape
    missing = _missing(num_groups, _GROUPS_OF_UNIT * UNIT_MULTIPLE)
    padded = F.pad(groups, (0, 0, 0, missing, 0, _missing(num_rows, ROW_MULTIPLE)))
    return padded.view(padded.shape[0], -1, _GROUPS_OF_UNIT, size)


def _as_words(units: Tensor) -> Tensor:
    """[rows, units, 2, width] uint8 -> [units, rows, width] int16, the bytes of the first group the low ones."""
    return units.permute(1, 0, 3, 2).contiguous().view(torch.int16).squeeze(3)


def _as_integers(entries: Tensor) -> Tensor:
    """[rows, entries, 4, 2 or 1] float16 -> [entries, rows] integers as wide, the first number in the low bits."""
    flat = entries.transpose(0, 1).contiguous()
    return flat.view({4: torch.int64, 2: torch.int32, 1: torch.int16}[flat.shape[2]]).squeeze(2)


def _as_index(permutation: Tensor | None) -> Tensor | None:
    return None if permutation is None else permutation.to(torch.int64)


def _missing(number: int, multiple: int) -> int:
    return -number % multiple
