"""RMSNorm."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from .build_context import BuildContext
from .weight_target import WeightTarget, parameter_target


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    Args:
        name: canonical name of the module.
        size: channels of a row.
        eps: added to the mean square.
        context: ops, dtype and device.
    """

    def __init__(self, name: str, size: int, eps: float, context: BuildContext) -> None:
        self.weight = context.empty(size)
        self.eps = eps
        self._name = name
        self._ops = context.ops

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield what the checkpoint must hold for this layer."""
        yield parameter_target(f"{self._name}.weight", self.weight)

    def forward_add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Add a block's output to the residual stream; return the normed sum and the sum."""
        return self._ops.add_rms_norm(x, residual, self.weight, self.eps)
