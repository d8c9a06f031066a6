"""The scales that a checkpoint may hold for a layer's 8-bit KV cache."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from pagewire.ipc.errors import ConfigError

from ..formats.checkpoint_tensor import CheckpointTensor
from ..kv_scales import KVScales
from .weight_target import WeightTarget


class KVScalesLoader:
    """Loads up to two numbers, `k_scale` and `v_scale`; of one alone, it is for keys and values.

    Numbers and not tensors: they are arguments of kernels, and the same for the life of the model.

    Args:
        prefix: canonical name of the attention module ("model.layers.0.self_attn").
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._key: float | None = None
        self._value: float | None = None

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield what the checkpoint may hold for this layer's cache."""
        for name, load in (("k_scale", self._load_key), ("v_scale", self._load_value)):
            yield WeightTarget(
                name=f"{self._prefix}.{name}",
                shape=(),
                load=load,
                loaded_bytes=lambda tensor: torch.float32.itemsize,
                is_optional=True,
            )

    def loaded(self) -> KVScales | None:
        """Return the scales; None if the checkpoint has none for this layer."""
        key = self._value if self._key is None else self._key
        value = self._key if self._value is None else self._value
        return None if key is None or value is None else KVScales(key, value)

    def _load_key(self, tensor: CheckpointTensor) -> None:
        self._key = _read_scale(tensor)

    def _load_value(self, tensor: CheckpointTensor) -> None:
        self._value = _read_scale(tensor)


def _read_scale(tensor: CheckpointTensor) -> float:
    number = torch.empty(())
    tensor.copy_to(number)
    scale = number.item()
    if not (math.isfinite(scale) and scale > 0):
        raise ConfigError(f"{tensor.source}: is {scale}; a KV scale is a finite number above 0")
    return scale
