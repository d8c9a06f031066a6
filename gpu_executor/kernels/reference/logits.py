"""Logits as a model states them: scaled, and bounded."""

from __future__ import annotations

import torch
from torch import Tensor


def bound_logits(logits: Tensor, scale: float, soft_cap: float | None, out: Tensor | None = None) -> Tensor:
    """See `SamplingOps.bound_logits`."""
    values = torch.empty(logits.shape, dtype=torch.float32, device=logits.device) if out is None else out
    values.copy_(logits)
    if scale != 1.0:
        values *= scale
    if soft_cap is not None:
        # One pass decides, instead of a mask for all rows of all steps.
        is_finite = values.numel() == 0 or all(bool(end.isfinite()) for end in values.aminmax())
        scaled = None if is_finite else values.clone()
        # tanh(x) = 1 - 2 / (1 + exp(2x)), by torch.exp: torch's tanh may give a number other bits where a vector loop
        # ends, which other rows of the step decide.
        values.mul_(2.0 / soft_cap).exp_().add_(1.0).reciprocal_().mul_(-2.0 * soft_cap)
        values += soft_cap
        if scaled is not None:
            torch.where(scaled.isinf(), scaled, values, out=values)
    return values
