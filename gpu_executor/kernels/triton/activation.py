"""Gating in float32: gate / (1 + exp(-s * gate)) * up, by which both activations are computed.

SiLU has s = 1. GELU with a hyperbolic tangent is gate / 2 * (1 + tanh(y)), and since (1 + tanh(y)) / 2 =
1 / (1 + exp(-2 y)) it has s = 2 y / gate = sqrt(8 / pi) * (1 + 0.044715 * gate^2).

Source: SwiGLU, Shazeer 2020 (arXiv 2002.05202); GELU, Hendrycks and Gimpel 2016 (arXiv 1606.08415).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launches.elementwise import GATE
from .launches.row import CompileCase, LaunchRow, pick

_SQRT_8_OVER_PI = tl.constexpr(math.sqrt(8.0 / math.pi))


@triton.jit
def gate_kernel(
    gate_up: tl.tensor, out: tl.tensor, SIZE: tl.constexpr, IS_GELU: tl.constexpr, BLOCK_SIZE: tl.constexpr
) -> None:
    """Gate BLOCK_SIZE channels of one row."""
    row = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = channels < SIZE
    source = gate_up + row * (2 * SIZE) + channels
    gate = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(source + SIZE, mask=mask, other=0.0).to(tl.float32)
    exponent = gate
    if IS_GELU:
        exponent = gate * (1.0 + 0.044715 * gate * gate) * _SQRT_8_OVER_PI
    gated = gate / (1.0 + tl.exp(-exponent)) * up
    tl.store(out + row * SIZE + channels, gated.to(out.dtype.element_ty), mask=mask)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """Gate the second half of each row by the first; see `Ops.silu_and_mul`.

    Args:
        gate_up: [num_tokens, 2 * size], float16, bfloat16 or float32.

    Returns:
        [num_tokens, size], gate_up's dtype.
    """
    return _gate(gate_up, is_gelu=False)


def gelu_tanh_and_mul(gate_up: Tensor) -> Tensor:
    """Gate the second half of each row by the first; see `Ops.gelu_tanh_and_mul`.

    Args:
        gate_up: as of `silu_and_mul`.

    Returns:
        [num_tokens, size], gate_up's dtype.
    """
    return _gate(gate_up, is_gelu=True)


def _gate(gate_up: Tensor, *, is_gelu: bool) -> Tensor:
    gate_up = gate_up.contiguous()
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_rows, size, dtype=gate_up.dtype, device=gate_up.device)
    row = pick(GATE)
    if num_rows > 0:
        grid = (num_rows, triton.cdiv(size, row.constants["BLOCK_SIZE"]))
        gate_kernel[grid](
            gate_up,
            out,
            SIZE=size,
            IS_GELU=is_gelu,
            **row.constants,
            num_warps=row.num_warps,
            num_stages=row.num_stages,
        )
    return out


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: models' sizes, in each dtype."""
    return [
        CompileCase(
            label=f"{'gelu' if is_gelu else 'silu'}, {dtype}, size {size}",
            function=gate_kernel,
            signature={"gate_up": f"*{dtype}", "out": f"*{dtype}"},
            constants={**row.constants, "SIZE": size, "IS_GELU": is_gelu},
            has_dot=False,
        )
        for dtype, size, is_gelu in (
            ("bf16", 14336, False),
            ("fp16", 1536, False),
            ("fp32", 11008, False),
            ("bf16", 9216, True),
            ("fp16", 21504, True),
        )
    ]
