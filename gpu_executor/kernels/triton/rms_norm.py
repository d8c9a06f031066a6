"""RMSNorm, alone or of a sum: x / sqrt(mean(x^2) + eps) * weight, in float32.

A program holds its rows whole in registers, so that each number is read once: the addition of a block's output to the
residual stream costs no pass of its own.

Source: Zhang and Sennrich 2019 (arXiv 1910.07467).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launches.elementwise import RMS_NORM
from .launches.row import CompileCase, LaunchRow, pick


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    total: tl.tensor,
    num_rows: tl.tensor,
    rows_inside: tl.tensor,
    outer_stride: tl.tensor,
    inner_stride: tl.tensor,
    eps: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
) -> None:
    """Norm BLOCK_ROWS rows; row r of x begins at (r // rows_inside) * outer_stride + (r % rows_inside) * inner_stride.

    All other matrices are contiguous.
    """
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    channels = tl.arange(0, BLOCK_SIZE)
    is_row = rows < num_rows
    mask = is_row[:, None] & (channels < SIZE)[None, :]
    starts = rows // rows_inside * outer_stride + rows % rows_inside * inner_stride
    values = tl.load(x + starts[:, None] + channels[None, :], mask=mask, other=0.0).to(tl.float32)
    places = rows[:, None] * SIZE + channels[None, :]
    if HAS_RESIDUAL:
        values += tl.load(residual + places, mask=mask, other=0.0).to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + places, rounded, mask=mask)
        values = rounded.to(tl.float32)  # the norm is that of the stream as it goes on
    mean_square = tl.sum(values * values, axis=1) / SIZE
    scale = tl.load(weight + channels, mask=channels < SIZE, other=0.0).to(tl.float32)
    normed = values / tl.sqrt_rn(mean_square + eps)[:, None] * scale[None, :]
    tl.store(out + places, normed.to(out.dtype.element_ty), mask=mask)


class _Rows(NamedTuple):
    """A tensor as rows of its last dimension: `outer` times `inner` of them."""

    tensor: Tensor
    num_rows: int
    inner: int
    outer_stride: int
    inner_stride: int


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm each row of the last dimension; see `Ops.rms_norm`.

    Args:
        x: [num_rows, size] or [num_tokens, num_heads, size], float16, bfloat16 or float32; a view whose last dimension
            is contiguous is read where it is.
        weight: [size], any of these dtypes.
        eps: added to the mean square.

    Returns:
        x's shape and dtype, contiguous.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(_rows_of(x), None, weight, out, out, eps)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Norm the sum of a block's output and the residual stream; see `Ops.add_rms_norm`.

    Args:
        x: [num_tokens, size].
        residual: like `x`.
        weight: [size].
        eps: added to the mean square.

    Returns:
        The normed sum, and the sum.
    """
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    _launch(_rows_of(x), residual.contiguous(), weight, out, total, eps)
    return out, total


def _rows_of(x: Tensor) -> _Rows:
    if x.dim() not in (2, 3) or x.stride(-1) != 1:
        x = x.reshape(-1, x.shape[-1]).contiguous()
    if x.dim() == 2:
        return _Rows(x, x.shape[0], 1, x.stride(0), 0)
    return _Rows(x, x.shape[0] * x.shape[1], x.shape[1], x.stride(0), x.stride(1))


def _launch(rows: _Rows, residual: Tensor | None, weight: Tensor, out: Tensor, total: Tensor, eps: float) -> None:
    if rows.num_rows == 0:
        return
    size = weight.shape[0]
    row = pick(RMS_NORM, size=size)
    grid = (triton.cdiv(rows.num_rows, row.constants["BLOCK_ROWS"]),)
    rms_norm_kernel[grid](
        rows.tensor,
        out if residual is None else residual,
        weight,
        out,
        total,
        rows.num_rows,
        rows.inner,
        rows.outer_stride,
        rows.inner_stride,
        eps,
        **_constants(row, size, has_residual=residual is not None),
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )


def _constants(row: LaunchRow, size: int, *, has_residual: bool) -> dict[str, int]:
    block_size = triton.next_power_of_2(size)
    return {**row.constants, "SIZE": size, "BLOCK_SIZE": block_size, "HAS_RESIDUAL": has_residual}


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: the largest size that it is for; of the last one a model's, in each dtype.

    Weights that were stored less an offset are float32 beside activations of 16 bits.
    """
    size = row.at_most.get("size", 16384)
    variants = [("bf16", "bf16", True), ("bf16", "fp32", True)]
    if row == RMS_NORM[-1]:
        variants += [("fp16", "fp16", False), ("fp32", "fp32", True)]
    return [
        CompileCase(
            label=f"{dtype}, {weight} weight, size {size}" + (", residual" if has_residual else ""),
            function=rms_norm_kernel,
            signature=dict.fromkeys(("x", "residual", "out", "total"), f"*{dtype}")
            | {"weight": f"*{weight}"}
            | dict.fromkeys(("num_rows", "rows_inside"), "i32")
            | dict.fromkeys(("outer_stride", "inner_stride"), "i32:16")
            | {"eps": "fp32"},
            constants=_constants(row, size, has_residual=has_residual),
            has_dot=False,
        )
        for dtype, weight, has_residual in variants
    ]
