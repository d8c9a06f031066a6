"""ggml's block types as canonical grouped weights, which keep 4 bits in 4 bits and 8 in 8.

What a conversion costs:

| stored | becomes                           | values                                                     |
|--------|-----------------------------------|------------------------------------------------------------|
| Q4_0   | 4-bit, minimum -8 scale           | the same                                                   |
| Q4_1   | 4-bit                             | the same                                                   |
| Q5_0   | 8-bit                             | the same                                                   |
| Q5_1   | 8-bit with minimum                | the same                                                   |
| Q8_0   | 8-bit                             | the same                                                   |
| IQ4_NL | 8-bit                             | the same                                                   |
| Q2_K   | 8-bit with minimum, groups of 16  | scale and minimum, fp16 x 4-bit products, rounded to fp16  |
| Q3_K   | 8-bit, groups of 16               | the scale, an fp16 x 6-bit product, rounded to fp16        |
| Q4_K   | 4-bit                             | scale and minimum, fp16 x 6-bit products, rounded to fp16  |
| Q5_K   | 8-bit with minimum                | as Q4_K                                                    |
| Q6_K   | 8-bit, groups of 16               | the scale, an fp16 x 8-bit product, rounded to fp16        |
| IQ4_XS | 8-bit                             | as Q3_K                                                    |

Rounding changes a scale by one part in 2048 at most: 0.7 % of the step between two neighbouring 4-bit values, and as
much again for the minimum, is a twentieth of what rounding to 4 bits did (up to half a step).

The types of fewer bits, and those whose codes are no even steps, take more memory so than in the file: the kernels'
4-bit layout has even steps, and groups of 32.

Blocks with a scale or a minimum that leaves fp16, or that is no number, have no such form. Their whole matrix is left
to be unpacked to a dense one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagewire.checkpoint.ggml_types import GGMLType

from ..kernels.layouts import Int4Weight, Int8Weight
from .gguf_blocks import (
    fifth_bits,
    half_at,
    iq4_codes,
    iq4_xs_codes,
    iq4_xs_scales,
    k_quant_scales,
    nibbles,
    q2_k_codes,
    q2_k_scales,
    q3_k_codes,
    q3_k_scales,
    q5_k_codes,
    q6_k_scales,
)

# Values converted at a time, so that the temporaries stay in the second-level cache; see `gguf._CHUNK_VALUES`.
_CHUNK_VALUES = 1 << 18

Blocks = NDArray[np.uint8]
Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Groups:
    """A matrix under construction: rows of whole groups.

    Attributes:
        codes: [num_rows, code bytes of a row] uint8, the canonical layout's bytes.
        scale: [num_rows, num_groups] float16.
        minimum: like `scale`, or None.
    """

    codes: Tensor
    scale: Tensor
    minimum: Tensor | None

    def rows(self, start: int, stop: int) -> Groups:
        """Return some rows, of the same memory."""
        minimum = None if self.minimum is None else self.minimum[start:stop]
        return Groups(self.codes[start:stop], self.scale[start:stop], minimum)


@dataclass(frozen=True, slots=True)
class _Form:
    """How one type becomes groups.

    Attributes:
        bits: of a code, 4 or 8.
        group_size: values that share a scale.
        has_minimum: as it says.
        fill: takes blocks [num_rows * blocks of a row, block_bytes] apart, into the rows of `Groups`.
    """

    bits: int
    group_size: int
    has_minimum: bool
    fill: Callable[[Blocks, Groups], None]

    @property
    def bytes_per_value(self) -> float:
        """Bytes that a weight takes, scales included."""
        return self.bits / 8 + (2 + 2 * self.has_minimum) / self.group_size


def bytes_per_value(ggml_type: GGMLType) -> float | None:
    """Return the bytes that a weight of this type takes as groups; None if it has no such form."""
    form = _FORMS.get(ggml_type)
    return None if form is None else form.bytes_per_value


def group_size(ggml_type: GGMLType) -> int | None:
    """Return the values of this type that share a scale in its canonical form; None if it has no such form."""
    form = _FORMS.get(ggml_type)
    return None if form is None else form.group_size


def convert(stored: Blocks, row_order: NDArray[np.int64] | None, ggml_type: GGMLType) -> Int4Weight | Int8Weight | None:
    """Convert a stored matrix; return None if it has to be unpacked to a dense one instead.

    Args:
        stored: [stored rows, bytes of a row] uint8, read-only, whole blocks.
        row_order: [num_rows], which stored row is row i; None: all as stored.
        ggml_type: how the rows are stored.
    """
    form = _FORMS.get(ggml_type)
    if form is None:
        return None
    num_rows = len(stored) if row_order is None else len(row_order)
    columns = stored.shape[1] // ggml_type.block_bytes * ggml_type.block_values
    groups = _allocate(form, num_rows, columns)
    step = max(1, _CHUNK_VALUES // columns)
    for start in range(0, num_rows, step):
        stop = min(start + step, num_rows)
        # A copy of the packed bytes: the map is read-only, which torch does not know.
        raw = stored[start:stop].copy() if row_order is None else stored[row_order[start:stop]]
        form.fill(raw.reshape(-1, ggml_type.block_bytes), groups.rows(start, stop))
    return _finish(form, groups, columns)


def _allocate(form: _Form, num_rows: int, columns: int) -> Groups:
    scales = (num_rows, columns // form.group_size)
    return Groups(
        codes=torch.empty(num_rows, columns * form.bits // 8, dtype=torch.uint8),
        scale=torch.empty(scales, dtype=torch.float16),
        minimum=torch.empty(scales, dtype=torch.float16) if form.has_minimum else None,
    )


def _finish(form: _Form, groups: Groups, columns: int) -> Int4Weight | Int8Weight | None:
    if not groups.scale.isfinite().all() or not (groups.minimum is None or groups.minimum.isfinite().all()):
        return None
    if form.bits == 4:
        assert groups.minimum is not None, "every 4-bit form has minima"
        return Int4Weight(groups.codes, groups.scale, groups.minimum, columns)
    return Int8Weight(groups.codes.view(torch.int8), groups.scale, groups.minimum)


# Codes of 16 or 32 bytes between scales are copied as records: numpy moves a record at a time, torch a byte.
_Q4_0 = np.dtype([("scale", "<f2"), ("codes", "V16")])
_Q4_1 = np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("codes", "V16")])
_Q8_0 = np.dtype([("scale", "<f2"), ("codes", "V32")])
_Q4_K = np.dtype([("scales", "V16"), ("codes", "V128")])
_Q6_K = np.dtype([("low", "V128"), ("high", "V64"), ("scales", "V18")])


def _fill_q4_0(raw: Blocks, out: Groups) -> None:
    blocks = raw.view(_Q4_0).reshape(out.scale.shape)
    _copy_codes(blocks, out)
    torch.mul(out.scale, -8.0, out=out.minimum)  # exact: a power of two


def _fill_q4_1(raw: Blocks, out: Groups) -> None:
    assert out.minimum is not None, "this form has minima"
    blocks = raw.view(_Q4_1).reshape(out.scale.shape)
    _copy_codes(blocks, out)
    np.copyto(out.minimum.numpy(), blocks["minimum"])


def _fill_q8_0(raw: Blocks, out: Groups) -> None:
    _copy_codes(raw.view(_Q8_0).reshape(out.scale.shape), out)


def _copy_codes(blocks: NDArray[np.void], out: Groups) -> None:
    np.copyto(out.codes.numpy().view(blocks["codes"].dtype), blocks["codes"])
    np.copyto(out.scale.numpy(), blocks["scale"])


def _fill_q5_0(raw: Blocks, out: Groups) -> None:
    blocks = torch.from_numpy(raw)
    codes = nibbles(blocks[:, 6:]) | fifth_bits(blocks[:, 2:6]) << 4
    _put_codes(codes - 16, out)  # wraps round: the bytes of signed numbers
    out.scale.copy_(half_at(blocks, 0).view(out.scale.shape))


def _fill_q5_1(raw: Blocks, out: Groups) -> None:
    assert out.minimum is not None, "this form has minima"
    blocks = torch.from_numpy(raw)
    codes = nibbles(blocks[:, 8:]) | fifth_bits(blocks[:, 4:8]) << 4
    _put_codes(codes, out)
    out.scale.copy_(half_at(blocks, 0).view(out.scale.shape))
    out.minimum.copy_(half_at(blocks, 2).view(out.scale.shape))


def _fill_iq4_nl(raw: Blocks, out: Groups) -> None:
    blocks = torch.from_numpy(raw)
    _put_codes(iq4_codes(blocks[:, 2:]), out)
    out.scale.copy_(half_at(blocks, 0).view(out.scale.shape))


def _fill_iq4_xs(raw: Blocks, out: Groups) -> None:
    blocks = torch.from_numpy(raw)
    _put_codes(iq4_xs_codes(blocks), out)
    out.scale.copy_(iq4_xs_scales(blocks).view(out.scale.shape))


def _fill_q2_k(raw: Blocks, out: Groups) -> None:
    blocks = torch.from_numpy(raw)
    _put_codes(q2_k_codes(blocks), out)
    _put_scales(q2_k_scales(blocks), out)


def _fill_q3_k(raw: Blocks, out: Groups) -> None:
    blocks = torch.from_numpy(raw)
    _put_codes(q3_k_codes(blocks) - 4, out)  # wraps round: the bytes of signed numbers
    out.scale.copy_(q3_k_scales(blocks).view(out.scale.shape))


def _fill_q4_k(raw: Blocks, out: Groups) -> None:
    # 32 bytes hold a group in their low halves and the next in their high ones; eight bytes are taken at a time.
    packed = _records(raw.view(_Q4_K)["codes"], 16)  # [blocks, 8]: the 16 bytes of channels 0-15 and 16-31, by turns
    first, second = _words(packed[:, 0::2]), _words(packed[:, 1::2])
    codes = _records(out.codes.numpy().reshape(-1, 128), 16)
    codes[:, 0::2] = _records((first & _LOW) | (second & _LOW) << _FOUR, 16)
    codes[:, 1::2] = _records((first >> _FOUR & _LOW) | (second & _HIGH), 16)
    _put_scales(k_quant_scales(torch.from_numpy(raw)), out)


def _fill_q5_k(raw: Blocks, out: Groups) -> None:
    blocks = torch.from_numpy(raw)
    _put_codes(q5_k_codes(blocks), out)
    _put_scales(k_quant_scales(blocks), out)


def _put_codes(codes: Tensor, out: Groups) -> None:
    """Copy 8-bit codes of either sign, one a byte."""
    out.codes.copy_(codes.view(torch.uint8).view(out.codes.shape))


def _put_scales(scales_and_minimums: tuple[Tensor, Tensor], out: Groups) -> None:
    """Round scales and minimums to fp16; what is subtracted becomes what is added."""
    assert out.minimum is not None, "this form has minima"
    scales, minimums = scales_and_minimums
    out.scale.copy_(scales.view(out.scale.shape))
    out.minimum.copy_(minimums.neg_().view(out.scale.shape))


def _fill_q6_k(raw: Blocks, out: Groups) -> None:
    # See `gguf_blocks.q6_k_codes`; eight bytes are taken at a time.
    blocks = raw.view(_Q6_K)
    low, high = _records(blocks["low"], 32), _words(_records(blocks["high"], 32))
    first, second = _words(low[:, 0::2]), _words(low[:, 1::2])
    codes = _records(out.codes.numpy().reshape(-1, 256), 32)  # [blocks, 8]: two halves of four groups
    codes[:, 0::4] = _signed((first & _LOW) | (high & _byte(0x03)) << _FOUR)
    codes[:, 1::4] = _signed((second & _LOW) | (high & _byte(0x0C)) << _TWO)
    codes[:, 2::4] = _signed((first >> _FOUR & _LOW) | (high & _byte(0x30)))
    codes[:, 3::4] = _signed((second >> _FOUR & _LOW) | (high & _byte(0xC0)) >> _TWO)
    out.scale.copy_(q6_k_scales(torch.from_numpy(raw)).view(out.scale.shape))


def _signed(codes: Words) -> NDArray[np.void]:
    """Records of 32 bytes: each 6-bit code less 32, as a signed byte."""
    turned = codes ^ _byte(0x20)  # 32 to 63 are 0 to 31 now; the others lack their sign
    sign = turned & _byte(0x20)
    return _records(turned | sign << _ONE | sign << _TWO, 32)


def _records(values: NDArray[Any], size: int) -> NDArray[np.void]:  # any type: its bytes are what counts
    """[blocks, bytes of a block / size]: the bytes of each block as records, without a copy if they lie together."""
    return np.ascontiguousarray(values).view(f"V{size}").reshape(len(values), -1)


def _words(records: NDArray[np.void]) -> Words:
    """The bytes of the records as words of eight, [blocks, words of a block]."""
    return np.ascontiguousarray(records).view(np.uint64).reshape(len(records), -1)


def _byte(value: int) -> np.uint64:
    """A word of eight times the same byte."""
    return np.uint64(value * 0x0101010101010101)


_ONE, _TWO, _FOUR = np.uint64(1), np.uint64(2), np.uint64(4)
_LOW, _HIGH = _byte(0x0F), _byte(0xF0)

_FORMS: dict[GGMLType, _Form] = {
    GGMLType.Q4_0: _Form(4, 32, True, _fill_q4_0),
    GGMLType.Q4_1: _Form(4, 32, True, _fill_q4_1),
    GGMLType.Q5_0: _Form(8, 32, False, _fill_q5_0),
    GGMLType.Q5_1: _Form(8, 32, True, _fill_q5_1),
    GGMLType.Q8_0: _Form(8, 32, False, _fill_q8_0),
    GGMLType.IQ4_NL: _Form(8, 32, False, _fill_iq4_nl),
    GGMLType.IQ4_XS: _Form(8, 32, False, _fill_iq4_xs),
    GGMLType.Q2_K: _Form(8, 16, True, _fill_q2_k),
    GGMLType.Q3_K: _Form(8, 16, False, _fill_q3_k),
    GGMLType.Q4_K: _Form(4, 32, True, _fill_q4_k),
    GGMLType.Q5_K: _Form(8, 32, True, _fill_q5_k),
    GGMLType.Q6_K: _Form(8, 16, False, _fill_q6_k),
}
