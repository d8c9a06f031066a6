"""Add the parts of a product whose channels were split, first to last, then the bias."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launches.products import SPLIT_SUM
from .launches.row import CompileCase, LaunchRow, pick


@triton.jit(do_not_specialize=["num_rows"])
def split_sum_kernel(
    parts: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    out_features: tl.tensor,
    parts_stride: tl.tensor,
    out_stride: tl.tensor,
    HAS_BIAS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> None:
    """Add BLOCK_SIZE channels of one row."""
    row = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = channels < out_features
    place = parts + row * parts_stride + channels
    total = tl.load(place, mask=mask, other=0.0)
    for _ in tl.static_range(1, NUM_SPLITS):
        place += num_rows.to(tl.int64) * parts_stride
        total += tl.load(place, mask=mask, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + channels, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + channels, total.to(out.dtype.element_ty), mask=mask)


def split_sum(parts: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Add partial products.

    Args:
        parts: [num_splits, num_rows, at least out_features] float32, contiguous.
        bias: [out_features], or None.
        out: [num_rows, out_features], any float dtype, the last dimension contiguous; written.
    """
    num_splits, num_rows, _ = parts.shape
    out_features = out.shape[1]
    row = pick(SPLIT_SUM)
    split_sum_kernel[(num_rows, triton.cdiv(out_features, row.constants["BLOCK_SIZE"]))](
        parts,
        out if bias is None else bias,
        out,
        num_rows,
        out_features,
        parts.stride(1),
        out.stride(0),
        HAS_BIAS=bias is not None,
        NUM_SPLITS=num_splits,
        **row.constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: one a dtype."""
    return [
        CompileCase(
            label=dtype,
            function=split_sum_kernel,
            signature={"parts": "*fp32", "bias": "*fp32", "out": f"*{dtype}"}
            | dict.fromkeys(("parts_stride", "out_stride"), "i32:16")
            | dict.fromkeys(("num_rows", "out_features"), "i32"),
            constants={**row.constants, "HAS_BIAS": True, "NUM_SPLITS": 4},
            has_dot=False,
        )
        for dtype in ("fp16", "bf16", "fp32")
    ]
