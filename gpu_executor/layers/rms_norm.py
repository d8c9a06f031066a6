"""RMSNorm."""

from __future__ import annotations

from collections.abc import Iterator

from .build_context import BuildContext
from .weight_target import WeightTarget, parameter_target


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    Args:
        name: canonical name of the module.
        size: channels of a row.
        eps: added to the mean square.
        context: dtype and device.
    """

    def __init__(self, name: str, size: int, eps: float, context: BuildContext) -> None:
        self.weight = context.empty(size)
        self.eps = eps
        self._name = name

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield what the checkpoint must hold for this layer."""
        yield parameter_target(f"{self._name}.weight", self.weight)
