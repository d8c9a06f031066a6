"""Unpack rows of a quantized weight to a dense matrix: what large products multiply by, through torch.

From some hundred rows of activations on, a product is bound by arithmetic. A vendor's dense product then gains more
than writing and reading the dense matrix once costs (4 % of the time at 8,192 rows).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launches.products import DEQUANTIZE
from .launches.row import CompileCase, LaunchRow, pick
from .packed_weight import PackedWeight
from .unpack import unpack_numbers


@triton.jit(do_not_specialize=["first_row", "num_rows"])
def dequantize_kernel(
    words: tl.tensor,
    scales: tl.tensor,
    out: tl.tensor,
    first_row: tl.tensor,
    num_rows: tl.tensor,
    in_features: tl.tensor,
    padded_rows: tl.tensor,
    scale_channels: tl.tensor,
    WIDTH: tl.constexpr,
    FIELDS: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    HAS_MINIMUM: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Unpack BLOCK_N rows of one unit, those from `first_row` on to the rows of `out` [num_rows, in_features]."""
    unit = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    word = tl.arange(0, WIDTH)
    source = unit * padded_rows + first_row + n
    is_row = n < num_rows
    codes = tl.load(words + source[:, None] * WIDTH + word[None, :], mask=is_row[:, None], other=0)
    first_channel = unit * (FIELDS * WIDTH)
    source = first_channel // scale_channels * padded_rows + first_row + n
    row_scales = tl.load(scales + source, mask=is_row, other=0)
    for field in tl.static_range(FIELDS):
        channel = first_channel + field * WIDTH + word
        numbers = unpack_numbers(codes, row_scales, field, FIELDS, IS_FLOAT, HAS_MINIMUM, out.dtype.element_ty)
        place = out + n[:, None].to(tl.int64) * in_features + channel[None, :]
        tl.store(place, numbers, mask=is_row[:, None] & (channel < in_features)[None, :])


def dequantize(weight: PackedWeight, first_row: int, num_rows: int, dtype: torch.dtype) -> Tensor:
    """Unpack some rows, their columns in the order in which they are packed.

    Args:
        weight: as packed.
        first_row: the first one.
        num_rows: how many.
        dtype: of the result: float16, bfloat16 or float32.

    Returns:
        [num_rows, in_features], each number rounded once.
    """
    out = torch.empty(num_rows, weight.in_features, dtype=dtype, device=weight.words.device)
    row = pick(DEQUANTIZE)
    num_units = triton.cdiv(weight.in_features, weight.unit_channels)
    dequantize_kernel[(num_units, triton.cdiv(num_rows, row.constants["BLOCK_N"]))](
        weight.words,
        weight.scales,
        out,
        first_row,
        num_rows,
        weight.in_features,
        weight.padded_rows,
        weight.scale_channels,
        WIDTH=weight.width,
        FIELDS=weight.fields,
        IS_FLOAT=weight.is_float,
        HAS_MINIMUM=weight.has_minimum,
        **row.constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )
    return out


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: one a dtype, each of another kind of weight."""
    return [
        CompileCase(
            label=f"{kind}, {dtype}",
            function=dequantize_kernel,
            signature={"words": "*i16", "scales": f"*{scales}", "out": f"*{dtype}"}
            | dict.fromkeys(("in_features", "padded_rows", "scale_channels"), "i32:16")
            | dict.fromkeys(("first_row", "num_rows"), "i32"),
            constants={**row.constants, "WIDTH": width, "FIELDS": 64 // width, "IS_FLOAT": kind == "fp8"}
            | {"HAS_MINIMUM": kind == "int4"},
            has_dot=False,
        )
        for kind, dtype, scales, width in (
            ("int4", "bf16", "i64", 16),
            ("int8", "fp16", "i16", 32),
            ("fp8", "fp32", "fp32", 32),
        )
    ]
