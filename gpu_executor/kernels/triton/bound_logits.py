"""Logits scaled and bounded in float32: soft_cap * tanh(scale * logit / soft_cap), one pass over a vocabulary's rows.

By tanh(x) = 1 - 2 / (1 + exp(2 x)), which holds at both ends: the exponential becomes infinity or zero. A scaled logit
that is itself infinite stays so.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launches.elementwise import BOUND_LOGITS
from .launches.row import CompileCase, LaunchRow, pick


@triton.jit
def bound_logits_kernel(
    logits: tl.tensor,
    out: tl.tensor,
    vocab_size: tl.tensor,
    scale: tl.tensor,
    soft_cap: tl.tensor,
    HAS_SOFT_CAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> None:
    """Bound BLOCK_SIZE logits of one row."""
    tokens = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = tokens < vocab_size
    places = tl.program_id(0).to(tl.int64) * vocab_size + tokens
    values = tl.load(logits + places, mask=mask, other=0.0).to(tl.float32) * scale
    if HAS_SOFT_CAP:
        bounded = soft_cap - 2.0 * soft_cap / (1.0 + tl.exp(values * (2.0 / soft_cap)))
        values = tl.where(tl.abs(values) == float("inf"), values, bounded)
    tl.store(out + places, values, mask=mask)


def bound_logits(logits: Tensor, scale: float, soft_cap: float | None, out: Tensor | None = None) -> Tensor:
    """Scale logits and bound them; see `Ops.bound_logits`.

    Args:
        logits: [num_rows, vocab_size], float16, bfloat16 or float32.
        scale: factor of each.
        soft_cap: bound of their magnitudes after that; None: unbounded.
        out: like `logits`, float32, contiguous; written. None: a new tensor.
    """
    if out is None:
        out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    num_rows, vocab_size = logits.shape
    if num_rows == 0:
        return out
    row = pick(BOUND_LOGITS)
    # By rows, so that what is compiled depends on the vocabulary alone, whatever the number of rows is a multiple of.
    bound_logits_kernel[(num_rows, triton.cdiv(vocab_size, row.constants["BLOCK_SIZE"]))](
        logits.contiguous(),
        out,
        vocab_size,
        scale,
        1.0 if soft_cap is None else soft_cap,
        HAS_SOFT_CAP=soft_cap is not None,
        **row.constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )
    return out


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: one a dtype, bounded, and one that is only scaled."""
    return [
        CompileCase(
            label=f"{dtype}, {'bounded' if has_soft_cap else 'scaled'}",
            function=bound_logits_kernel,
            signature={"logits": f"*{dtype}", "out": "*fp32", "vocab_size": "i32:16"}
            | dict.fromkeys(("scale", "soft_cap"), "fp32"),
            constants={**row.constants, "HAS_SOFT_CAP": has_soft_cap},
            has_dot=False,
        )
        for dtype, has_soft_cap in (("bf16", True), ("fp16", True), ("fp32", True), ("bf16", False))
    ]
