"""Products with quantized weights, which are unpacked in registers: int4 and int8 in groups, fp8 by tiles.

out = x @ weight.T + bias. The tile is the transposed one, rows of the weight by rows of activations: so the unpacked
weight is the operand that matrix units take from registers, and few activations waste little (their side of a tile may
be narrow). Weights of integers are rounded to the activations' dtype once; fp8 codes are exact in it, and are scaled in
float32 after the multiplication. Sums are float32.

Each output adds its channels in one order, chosen by the launch row alone.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .dot_dtype import dot_dtype
from .launches.products import QUANTIZED_MATMUL
from .launches.row import CompileCase, LaunchRow, pick
from .packed_weight import UNIT_MULTIPLE, PackedWeight
from .split_sum import split_sum
from .unpack import unpack_floats, unpack_integers


@triton.jit
def quantized_steps(
    x_rows: tl.tensor,
    words: tl.tensor,
    scales: tl.tensor,
    n: tl.tensor,
    is_row: tl.tensor,
    first_step: tl.tensor,
    last_step: tl.tensor,
    in_features: tl.tensor,
    padded_rows: tl.tensor,
    WIDTH: tl.constexpr,
    FIELDS: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    IS_STEPWISE: tl.constexpr,
    HAS_MINIMUM: tl.constexpr,
    IS_EVEN: tl.constexpr,
    UNITS: tl.constexpr,
    DOT_DTYPE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
) -> tl.tensor:
    """Return the sums of a tile over some steps of UNITS units each, [BLOCK_N, BLOCK_M] float32.

    Args:
        x_rows: [BLOCK_M] pointers to the first channels of activations; `is_row`: those that are there.
        words: the weight's, `scales` alike; see `PackedWeight`.
        n: [BLOCK_N], its rows.
    """
    word = tl.arange(0, WIDTH)
    first_unit = first_step.to(tl.int64) * UNITS
    channel = first_step * (UNITS * FIELDS * WIDTH)
    x_tile = x_rows[None, :] + channel + word[:, None]
    word_tile = words + first_unit * padded_rows * WIDTH + n[:, None] * WIDTH + word[None, :]
    scale_tile = scales + n
    if IS_STEPWISE:  # a step has one entry of scales
        scale_tile += first_step.to(tl.int64) * padded_rows
    elif not IS_FLOAT:
        scale_tile += first_unit * padded_rows
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for _ in range(first_step, last_step):
        # Each step has a sum of its own: ptxas waits after every wgmma whose sums live on in the next step. And it
        # rounds less, as small numbers are added to each other before they meet the total.
        partial = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
        if IS_STEPWISE:
            step_scales = tl.load(scale_tile)
        for _unit in tl.static_range(UNITS):
            codes = tl.load(word_tile)
            unit_scales = 0 if IS_FLOAT else step_scales if IS_STEPWISE else tl.load(scale_tile)
            for field in tl.static_range(FIELDS):
                mask = is_row[None, :] if IS_EVEN else is_row[None, :] & (channel + word < in_features)[:, None]
                values = tl.load(x_tile, mask=mask, other=0.0).to(DOT_DTYPE)
                if IS_FLOAT:
                    weight = unpack_floats(codes, field, DOT_DTYPE)
                else:
                    weight = unpack_integers(codes, unit_scales, field, FIELDS, HAS_MINIMUM, DOT_DTYPE)
                partial = tl.dot(weight, values, partial, input_precision="ieee")
                x_tile += WIDTH
                channel += WIDTH
            word_tile += padded_rows * WIDTH
            if not IS_FLOAT and not IS_STEPWISE:
                scale_tile += padded_rows
        total += partial * step_scales[:, None] if IS_FLOAT and IS_STEPWISE else partial
        if IS_STEPWISE:
            scale_tile += padded_rows
    if IS_FLOAT and not IS_STEPWISE:
        total *= tl.load(scale_tile)[:, None]
    return total


@triton.jit(do_not_specialize=["num_rows", "num_steps", "steps_of_split"])
def quantized_matmul_kernel(
    x: tl.tensor,
    words: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    in_features: tl.tensor,
    out_features: tl.tensor,
    padded_rows: tl.tensor,
    num_steps: tl.tensor,
    steps_of_split: tl.tensor,
    WIDTH: tl.constexpr,
    FIELDS: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    IS_STEPWISE: tl.constexpr,
    HAS_MINIMUM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    UNITS: tl.constexpr,
    DOT_DTYPE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
) -> None:
    """Multiply BLOCK_N rows of the weight by BLOCK_M rows of x over one split's steps, of UNITS units each.

    With more than one split, `out` is [NUM_SPLITS, num_rows, padded_rows] float32, and a later kernel adds the bias.
    """
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    is_row = m < num_rows
    first_step = split * steps_of_split
    last_step = tl.minimum(first_step + steps_of_split, num_steps)
    total = quantized_steps(
        x + m * x_stride, words, scales, n, is_row, first_step, last_step, in_features, padded_rows,
        WIDTH, FIELDS, IS_FLOAT, IS_STEPWISE, HAS_MINIMUM, IS_EVEN, UNITS, DOT_DTYPE, BLOCK_N, BLOCK_M,
    )  # fmt: skip
    if NUM_SPLITS > 1:
        place = out + (split * num_rows + m)[None, :] * padded_rows + n[:, None]
        tl.store(place, total, mask=is_row[None, :])
    else:
        is_real = n < out_features
        if HAS_BIAS:
            total += tl.load(bias + n, mask=is_real, other=0.0)[:, None]
        place = out + m[None, :] * out_stride + n[:, None]
        tl.store(place, total.to(out.dtype.element_ty), mask=is_row[None, :] & is_real[:, None])


def quantized_matmul(x: Tensor, weight: PackedWeight, out: Tensor, *, num_rows_as: int | None = None) -> None:
    """Multiply rows of activations by a quantized weight.

    Args:
        x: [num_rows, in_features], float16, bfloat16 or float32, the last dimension contiguous.
        weight: as packed, on x's device.
        out: [num_rows, out_features], x's dtype, the last dimension contiguous; written.
        num_rows_as: choose the launch for so many rows, whatever x has; None: for those of x.
    """
    num_rows = x.shape[0]
    if num_rows == 0:
        return
    row = pick(QUANTIZED_MATMUL, num_rows=num_rows_as or num_rows, out_features=weight.out_features)
    num_splits = row.constants["NUM_SPLITS"]
    target = out
    if num_splits > 1:
        size = (num_splits, num_rows, weight.padded_rows)
        target = torch.empty(size, dtype=torch.float32, device=x.device)
    num_steps = weight.num_units // UNIT_MULTIPLE
    # Neighbouring programs read the same rows of the weight: they come from memory once.
    grid = (
        triton.cdiv(num_rows, row.constants["BLOCK_M"]),
        weight.padded_rows // row.constants["BLOCK_N"],
        num_splits,
    )
    quantized_matmul_kernel[grid](
        x,
        weight.words,
        weight.scales,
        x if weight.bias is None else weight.bias,
        target,
        num_rows,
        x.stride(0),
        out.stride(0),
        weight.in_features,
        weight.out_features,
        weight.padded_rows,
        num_steps,
        triton.cdiv(num_steps, num_splits),
        WIDTH=weight.width,
        FIELDS=weight.fields,
        IS_FLOAT=weight.is_float,
        IS_STEPWISE=weight.scale_channels == weight.step_channels,
        HAS_MINIMUM=weight.has_minimum,
        HAS_BIAS=weight.bias is not None,
        IS_EVEN=weight.in_features == weight.num_units * weight.unit_channels,
        UNITS=UNIT_MULTIPLE,
        DOT_DTYPE=dot_dtype(x.dtype),
        **row.constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )
    if num_splits > 1:
        split_sum(target, weight.bias, out)


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: int4, whose unpacking takes most, and what else comes close to a limit.

    That is shared memory for int8 with wide tiles, and registers for fp8 with the largest. float32 has small ones.
    """
    kinds: list[tuple[str, str, str, dict[str, Any]]] = [
        ("int4", "bf16", "i64", {"WIDTH": 16, "FIELDS": 4, "HAS_MINIMUM": True})
    ]
    if row.constants["BLOCK_N"] == max(other.constants["BLOCK_N"] for other in QUANTIZED_MATMUL):
        kinds.append(("int8", "fp16", "i32", {"WIDTH": 32, "FIELDS": 2}))
    if row == QUANTIZED_MATMUL[-1]:
        kinds.append(("fp8", "bf16", "fp32", {"WIDTH": 32, "FIELDS": 2, "IS_FLOAT": True, "IS_STEPWISE": True}))
    if row in (QUANTIZED_MATMUL[0], QUANTIZED_MATMUL[-1]):
        constants = {"WIDTH": 16, "FIELDS": 4, "HAS_MINIMUM": True, "IS_STEPWISE": True}
        kinds.append(("int4 in groups of 128", "bf16", "i32", constants))
    if row == QUANTIZED_MATMUL[0]:
        kinds.append(("int4", "fp32", "i64", {"WIDTH": 16, "FIELDS": 4, "HAS_MINIMUM": True, "IS_EVEN": False}))
    return [_compile_case(row, *kind) for kind in kinds]


def _compile_case(row: LaunchRow, kind: str, dtype: str, scales: str, constants: dict[str, Any]) -> CompileCase:
    flags = dict.fromkeys(("IS_FLOAT", "IS_STEPWISE", "HAS_MINIMUM", "HAS_BIAS"), False) | {"IS_EVEN": True}
    dot_dtypes = {"fp16": tl.float16, "bf16": tl.bfloat16, "fp32": tl.float32}
    out = "fp32" if row.constants["NUM_SPLITS"] > 1 else dtype
    return CompileCase(
        label=f"{kind}, {dtype}",
        function=quantized_matmul_kernel,
        signature={"x": f"*{dtype}", "words": "*i16", "scales": f"*{scales}", "bias": "*fp32", "out": f"*{out}"}
        | dict.fromkeys(("x_stride", "out_stride", "in_features", "out_features", "padded_rows"), "i32:16")
        | dict.fromkeys(("num_rows", "num_steps", "steps_of_split"), "i32"),
        constants=flags | constants | dict(row.constants) | {"UNITS": UNIT_MULTIPLE, "DOT_DTYPE": dot_dtypes[dtype]},
        has_dot=dtype != "fp32",
    )
