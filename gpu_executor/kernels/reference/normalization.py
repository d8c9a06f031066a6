"""RMSNorm in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from .reductions import fixed_order_sum


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `Ops.rms_norm`."""
    values = x.float()
    mean_square = fixed_order_sum(values * values) / x.shape[-1]
    # A square root and a division are exact by IEEE 754; torch.rsqrt is not, and may differ between code paths.
    normed = values / torch.sqrt(mean_square + eps).unsqueeze(-1)
    return (normed * weight.float()).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `Ops.add_rms_norm`."""
    total = x + residual
    return rms_norm(total, weight, eps), total
