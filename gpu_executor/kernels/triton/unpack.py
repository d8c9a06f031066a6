"""Codes of packed weights as numbers, in the kernels that read them; `packed_weight` says where they lie.

Integers become float16 without a conversion: the code is put into the mantissa of 1024, which is then subtracted. Both
steps are exact, and work on two numbers in a register at once, as does scaling in float16, where a fused multiplication
and addition rounds once: the number nearest to scale * code + minimum. (Conversions run at a quarter of that rate, and
a product for few rows has no more than five instructions a weight before it falls behind the memory of an H100.)
bfloat16 is made of that float16 number, float32 is computed in float32.

Source: Kim et al. 2022, "Who says elephants can't run" (arXiv 2211.10017), for the exponent trick.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def unpack_code(words: tl.tensor, FIELD: tl.constexpr, FIELDS: tl.constexpr) -> tl.tensor:
    """Return one field of each word, an integer code, as float16; 8-bit ones are signed."""
    if FIELDS == 4:
        half = words >> 8 if FIELD >= 2 else words
        if FIELD % 2 == 0:
            code = (half & 0x000F | 0x6400).to(tl.float16, bitcast=True) - 1024.0
        else:  # 1024 + 16 * code; no shift is needed
            code = (half & 0x00F0 | 0x6400).to(tl.float16, bitcast=True) * 0.0625 - 64.0
    else:
        byte = (words >> 8) & 0x00FF if FIELD == 1 else words & 0x00FF
        code = (byte | 0x6400).to(tl.float16, bitcast=True) - 1152.0
    return code


@triton.jit
def unpack_scale(scales: tl.tensor, INDEX: tl.constexpr) -> tl.tensor:
    """Return one of the float16 numbers that lie in an integer, the lowest bits first."""
    if scales.dtype == tl.int16:
        return scales.to(tl.float16, bitcast=True)
    else:
        return ((scales >> (16 * INDEX)) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def unpack_integers(
    words: tl.tensor,
    scales: tl.tensor,
    FIELD: tl.constexpr,
    FIELDS: tl.constexpr,
    HAS_MINIMUM: tl.constexpr,
    DTYPE: tl.constexpr,
) -> tl.tensor:
    """Return the weights of one field.

    Args:
        words: [rows, width] int16.
        scales: [rows] int64, int32 or int16: those of a unit's two halves if there is room for them.
    """
    code = unpack_code(words, FIELD, FIELDS)
    halves: tl.constexpr = scales.dtype.primitive_bitwidth // (32 if HAS_MINIMUM else 16)
    second: tl.constexpr = 1 if halves == 2 and FIELD >= FIELDS // 2 else 0
    if HAS_MINIMUM:
        scale = unpack_scale(scales, 2 * second)
        minimum = unpack_scale(scales, 2 * second + 1)
        if DTYPE == tl.float32:
            return code.to(tl.float32) * scale.to(tl.float32)[:, None] + minimum.to(tl.float32)[:, None]
        else:
            return as_operand(code * scale[:, None] + minimum[:, None], DTYPE)
    else:
        scale = unpack_scale(scales, second)
        if DTYPE == tl.float32:
            return code.to(tl.float32) * scale.to(tl.float32)[:, None]
        else:
            return as_operand(code * scale[:, None], DTYPE)


@triton.jit
def unpack_floats(words: tl.tensor, FIELD: tl.constexpr, DTYPE: tl.constexpr) -> tl.tensor:
    """Return the e4m3 numbers of one field, divided by 256; exact in every dtype."""
    low = (words & 0x007F) << 7 | (words & 0x0080) << 8
    high = (words & 0x7F00) >> 1 | (words & -0x8000)
    bits = low if FIELD == 0 else high
    return as_operand(bits.to(tl.float16, bitcast=True), DTYPE)


@triton.jit
def unpack_numbers(
    words: tl.tensor,
    scales: tl.tensor,
    FIELD: tl.constexpr,
    FIELDS: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    HAS_MINIMUM: tl.constexpr,
    DTYPE: tl.constexpr,
) -> tl.tensor:
    """Return the numbers that one field stands for, whatever kind of weight it is; see `unpack_integers`.

    Args:
        words: [rows, width] int16.
        scales: [rows], the entry of these channels.
    """
    if IS_FLOAT:
        return (unpack_floats(words, FIELD, tl.float32) * scales[:, None]).to(DTYPE)
    else:
        return unpack_integers(words, scales, FIELD, FIELDS, HAS_MINIMUM, DTYPE)


@triton.jit
def as_operand(number: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    """Convert float16; to bfloat16 by way of float32, two at a time (the direct way is one by one)."""
    if DTYPE == tl.float16:
        return number
    else:
        return number.to(tl.float32).to(DTYPE)
