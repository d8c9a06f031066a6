"""SiLU gating in float32: gate / (1 + exp(-gate)) * up.

Source: SwiGLU, Shazeer 2020 (arXiv 2002.05202).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launches.elementwise import SILU_AND_MUL
from .launches.row import CompileCase, LaunchRow, pick


@triton.jit
def silu_and_mul_kernel(gate_up: tl.tensor, out: tl.tensor, SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr) -> None:
    """Gate BLOCK_SIZE channels of one row."""
    row = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = channels < SIZE
    source = gate_up + row * (2 * SIZE) + channels
    gate = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(source + SIZE, mask=mask, other=0.0).to(tl.float32)
    gated = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * SIZE + channels, gated.to(out.dtype.element_ty), mask=mask)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """Gate the second half of each row by the first; see `Ops.silu_and_mul`.

    Args:
        gate_up: [num_tokens, 2 * size], float16, bfloat16 or float32.

    Returns:
        [num_tokens, size], gate_up's dtype.
    """
    gate_up = gate_up.contiguous()
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_rows, size, dtype=gate_up.dtype, device=gate_up.device)
    row = pick(SILU_AND_MUL)
    if num_rows > 0:
        grid = (num_rows, triton.cdiv(size, row.constants["BLOCK_SIZE"]))
        silu_and_mul_kernel[grid](
            gate_up, out, SIZE=size, **row.constants, num_warps=row.num_warps, num_stages=row.num_stages
        )
    return out


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: one a dtype."""
    return [
        CompileCase(
            label=f"{dtype}, size {size}",
            function=silu_and_mul_kernel,
            signature={"gate_up": f"*{dtype}", "out": f"*{dtype}"},
            constants={**row.constants, "SIZE": size},
            has_dot=False,
        )
        for dtype, size in (("bf16", 14336), ("fp16", 1536), ("fp32", 11008))
    ]
