"""Look up rows of a quantized weight: its words lie apart by unit, so a token's row is gathered and unpacked."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launches.elementwise import EMBEDDING
from .launches.row import CompileCase, LaunchRow, pick
from .packed_weight import PackedWeight
from .unpack import unpack_numbers


@triton.jit(do_not_specialize_on_alignment=["input_ids"])
def embedding_kernel(
    input_ids: tl.tensor,
    words: tl.tensor,
    scales: tl.tensor,
    out: tl.tensor,
    num_units: tl.tensor,
    in_features: tl.tensor,
    padded_rows: tl.tensor,
    scale_channels: tl.tensor,
    WIDTH: tl.constexpr,
    FIELDS: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    HAS_MINIMUM: tl.constexpr,
    BLOCK_UNITS: tl.constexpr,
) -> None:
    """Unpack BLOCK_UNITS units of one token's row."""
    token = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1).to(tl.int64) * BLOCK_UNITS + tl.arange(0, BLOCK_UNITS)
    word = tl.arange(0, WIDTH)
    source = unit * padded_rows + tl.load(input_ids + token)
    is_unit = unit < num_units
    codes = tl.load(words + source[:, None] * WIDTH + word[None, :], mask=is_unit[:, None], other=0)
    first_channel = unit * (FIELDS * WIDTH)
    source = first_channel // scale_channels * padded_rows + tl.load(input_ids + token)
    unit_scales = tl.load(scales + source, mask=is_unit & (first_channel < in_features), other=0)
    for field in tl.static_range(FIELDS):
        channel = first_channel[:, None] + field * WIDTH + word[None, :]
        # In float32, as a lookup is nowhere near the arithmetic that a product is spared by float16.
        numbers = unpack_numbers(codes, unit_scales, field, FIELDS, IS_FLOAT, HAS_MINIMUM, tl.float32)
        rounded = numbers.to(out.dtype.element_ty)
        tl.store(out + token * in_features + channel, rounded, mask=channel < in_features)


def embedding(input_ids: Tensor, weight: PackedWeight, dtype: torch.dtype) -> Tensor:
    """Look up one row for each token.

    Args:
        input_ids: [num_tokens] int64, each below the weight's rows.
        weight: as packed.
        dtype: of the result: float16, bfloat16 or float32.

    Returns:
        [num_tokens, in_features], each number rounded once.
    """
    num_tokens = input_ids.shape[0]
    out = torch.empty(num_tokens, weight.in_features, dtype=dtype, device=weight.words.device)
    if num_tokens == 0:
        return out
    row = pick(EMBEDDING)
    num_units = triton.cdiv(weight.in_features, weight.unit_channels)
    embedding_kernel[(num_tokens, triton.cdiv(num_units, row.constants["BLOCK_UNITS"]))](
        input_ids,
        weight.words,
        weight.scales,
        out,
        num_units,
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
    if weight.permutation is None:
        return out
    return torch.empty_like(out).index_copy_(1, weight.permutation, out)


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: one a dtype, each of another kind of weight."""
    return [
        CompileCase(
            label=f"{kind}, {dtype}",
            function=embedding_kernel,
            signature={"input_ids": "*i64", "words": "*i16", "scales": f"*{scales}", "out": f"*{dtype}"}
            | dict.fromkeys(("in_features", "padded_rows", "scale_channels"), "i32:16")
            | {"num_units": "i32"},
            constants={**row.constants, "WIDTH": width, "FIELDS": 64 // width, "IS_FLOAT": kind == "fp8"}
            | {"HAS_MINIMUM": kind == "int4"},
            has_dot=False,
        )
        for kind, dtype, scales, width in (
            ("int4", "fp32", "i64", 16),
            ("int8", "bf16", "i32", 32),
            ("fp8", "fp16", "fp32", 32),
        )
    ]
