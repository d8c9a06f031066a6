"""Gating in float32."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """See `Ops.silu_and_mul`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    # Not torch's silu: what its vector loop leaves over goes through a scalar exp with other bits, and which elements
    # those are depends on how threads cut the rows. torch.exp runs one path for all, and the rest is IEEE-exact.
    return (gate / (1.0 + torch.exp(-gate)) * up).to(gate_up.dtype)


def gelu_tanh_and_mul(gate_up: Tensor) -> Tensor:
    """See `Ops.gelu_tanh_and_mul`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    inner = math.sqrt(2.0 / math.pi) * (gate + 0.044715 * gate * gate * gate)
    # (1 + tanh(y)) / 2 = 1 / (1 + exp(-2 y)): by torch.exp, as above.
    return (gate / (1.0 + torch.exp(-2.0 * inner)) * up).to(gate_up.dtype)
