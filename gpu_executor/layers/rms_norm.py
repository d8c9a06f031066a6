"""RMSNorm."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pagewire.checkpoint.model_config import ModelConfig

from ..formats.checkpoint_tensor import CheckpointTensor
from .build_context import BuildContext
from .weight_target import WeightTarget


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    Args:
        name: canonical name of the module.
        size: channels of a row.
        config: epsilon, what is added to the stored weight, and whether that stays in float32.
        context: dtype and device.
    """

    def __init__(self, name: str, size: int, config: ModelConfig, context: BuildContext) -> None:
        self.eps = config.rms_norm_eps
        self._name = name
        self._offset = config.norm_weight_offset
        dtype = torch.float32 if config.has_float32_norms else context.dtype
        self._is_elsewhere = context.is_elsewhere
        self.weight = torch.empty(size, dtype=dtype, device=context.device)

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield what the checkpoint must hold for this layer."""
        yield WeightTarget(
            name=f"{self._name}.weight",
            shape=tuple(self.weight.shape),
            load=self._load,
            loaded_bytes=lambda tensor: self.weight.nbytes,
            is_elsewhere=self._is_elsewhere,
        )

    def _load(self, tensor: CheckpointTensor) -> None:
        tensor.copy_to(self.weight)
        if self._offset:
            self.weight += self._offset
