"""The dense product under --batch-invariant: fixed tiles, so that a row's bits don't depend on how many there are.

A vendor's library picks another kernel for another number of rows, and with it another order of additions. Here each
output adds its channels by steps of BLOCK_K, in one order (or a fixed number of them, whose sums are added in theirs),
whatever rows share the tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .dot_dtype import dot_dtype
from .launches.products import DENSE_MATMUL
from .launches.row import CompileCase, LaunchRow, pick
from .split_sum import split_sum


@triton.jit
def dense_steps(
    x_rows: tl.tensor,
    weight_rows: tl.tensor,
    is_row: tl.tensor,
    is_real: tl.tensor,
    first_step: tl.tensor,
    last_step: tl.tensor,
    in_features: tl.tensor,
    IS_EVEN: tl.constexpr,
    DOT_DTYPE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> tl.tensor:
    """Return the sums of a tile over some steps of BLOCK_K channels, [BLOCK_N, BLOCK_M] float32.

    Args:
        x_rows: [BLOCK_M] pointers to the first channels of activations; `is_row`: those that are there.
        weight_rows: [BLOCK_N] pointers, of the weight; `is_real` likewise.
    """
    channels = first_step * BLOCK_K + tl.arange(0, BLOCK_K)
    x_tile = x_rows[None, :] + channels[:, None]
    weight_tile = weight_rows[:, None] + channels[None, :]
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for _ in range(first_step, last_step):
        x_mask, weight_mask = is_row[None, :], is_real[:, None]
        if not IS_EVEN:
            is_channel = channels < in_features
            x_mask, weight_mask = x_mask & is_channel[:, None], weight_mask & is_channel[None, :]
        values = tl.load(x_tile, mask=x_mask, other=0.0).to(DOT_DTYPE)
        weights = tl.load(weight_tile, mask=weight_mask, other=0.0).to(DOT_DTYPE)
        total = tl.dot(weights, values, total, input_precision="ieee")
        x_tile += BLOCK_K
        weight_tile += BLOCK_K
        channels += BLOCK_K
    return total


@triton.jit(do_not_specialize=["num_rows", "num_steps", "steps_of_split"])
def dense_matmul_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    in_features: tl.tensor,
    out_features: tl.tensor,
    num_steps: tl.tensor,
    steps_of_split: tl.tensor,
    HAS_BIAS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    DOT_DTYPE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
) -> None:
    """Multiply BLOCK_N rows of the weight by BLOCK_M rows of x over one split's steps, of BLOCK_K channels each.

    With more than one split, `out` is [NUM_SPLITS, num_rows, out_features] float32, and a later kernel adds the bias.
    """
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    is_row, is_real = m < num_rows, n < out_features
    first_step = split * steps_of_split
    last_step = tl.minimum(first_step + steps_of_split, num_steps)
    x_rows, weight_rows = x + m * x_stride, weight + n * in_features
    total = dense_steps(
        x_rows, weight_rows, is_row, is_real, first_step, last_step, in_features,
        IS_EVEN, DOT_DTYPE, BLOCK_N, BLOCK_M, BLOCK_K,
    )  # fmt: skip
    mask = is_row[None, :] & is_real[:, None]
    if NUM_SPLITS > 1:
        tl.store(out + (split * num_rows + m)[None, :] * out_features + n[:, None], total, mask=mask)
    else:
        if HAS_BIAS:
            total += tl.load(bias + n, mask=is_real, other=0.0).to(tl.float32)[:, None]
        tl.store(out + m[None, :] * out_stride + n[:, None], total.to(out.dtype.element_ty), mask=mask)


def dense_matmul(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Multiply rows of activations by a matrix.

    Args:
        x: [num_rows, in_features], float16, bfloat16 or float32, the last dimension contiguous.
        weight: [out_features, in_features], contiguous, one of these dtypes.
        bias: [out_features], or None.
        out: [num_rows, out_features], x's dtype, the last dimension contiguous; written.
    """
    num_rows, in_features = x.shape
    if num_rows == 0:
        return
    out_features = weight.shape[0]
    row = pick(DENSE_MATMUL, out_features=out_features)
    num_splits, block_k = row.constants["NUM_SPLITS"], row.constants["BLOCK_K"]
    target = out
    if num_splits > 1:
        target = torch.empty(num_splits, num_rows, out_features, dtype=torch.float32, device=x.device)
    num_steps = triton.cdiv(in_features, block_k)
    # Neighbouring programs read the same rows of the weight: they come from memory once.
    grid = (
        triton.cdiv(num_rows, row.constants["BLOCK_M"]),
        triton.cdiv(out_features, row.constants["BLOCK_N"]),
        num_splits,
    )
    dense_matmul_kernel[grid](
        x,
        weight,
        x if bias is None else bias,
        target,
        num_rows,
        x.stride(0),
        out.stride(0),
        in_features,
        out_features,
        num_steps,
        triton.cdiv(num_steps, num_splits),
        HAS_BIAS=bias is not None,
        IS_EVEN=in_features % block_k == 0,
        DOT_DTYPE=dot_dtype(x.dtype),
        **row.constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )
    if num_splits > 1:
        split_sum(target, bias, out)


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: bfloat16; of the last one float16 too, with channels that fill no step.

    Channels are a multiple of 16 even so, as in all models: of an odd number the loads alone take all registers.
    """
    strides, sizes = (
        ("x_stride", "out_stride", "in_features"),
        ("num_rows", "out_features", "num_steps", "steps_of_split"),
    )
    dtypes = [("bf16", tl.bfloat16, True)]
    if row == DENSE_MATMUL[-1]:
        dtypes.append(("fp16", tl.float16, False))
    return [
        CompileCase(
            label=dtype,
            function=dense_matmul_kernel,
            signature=dict.fromkeys(("x", "weight", "bias"), f"*{dtype}")
            | {"out": "*fp32" if row.constants["NUM_SPLITS"] > 1 else f"*{dtype}"}
            | dict.fromkeys(strides, "i32:16")
            | dict.fromkeys(sizes, "i32"),
            constants={**row.constants, "HAS_BIAS": True, "IS_EVEN": is_even, "DOT_DTYPE": triton_dtype},
            has_dot=True,
        )
        for dtype, triton_dtype, is_even in dtypes
    ]
