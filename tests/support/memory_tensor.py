"""A checkpoint tensor without a checkpoint."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pagewire.gpu_executor.formats.tensor_part import TensorPart
from pagewire.gpu_executor.kernels.layouts import GROUP_SIZE, DenseWeight, LinearWeight
from pagewire.gpu_executor.layers.weight_target import WeightTarget


class MemoryTensor:
    """Plain values; see `CheckpointTensor`."""

    def __init__(self, name: str, values: Tensor) -> None:
        self.name = self.source = name
        self.shape = tuple(values.shape)
        self._values = values

    def sliced(self, part: TensorPart) -> MemoryTensor:
        values = self._values
        if part.rows is not None:
            values = torch.cat([values[run.start : run.stop] for run in part.rows])
        if part.columns is not None:
            values = values[:, part.columns.start : part.columns.stop]
        return MemoryTensor(self.name, values)

    def copy_to(self, destination: Tensor) -> None:
        destination.copy_(self._values)

    def read_matrix(self, dtype: torch.dtype | None) -> LinearWeight:
        return DenseWeight(self._values.to(dtype or self._values.dtype).contiguous())

    def matrix_bytes(self, dtype: torch.dtype | None, max_scale_group: int = GROUP_SIZE) -> int:
        return (dtype or self._values.dtype).itemsize * math.prod(self.shape)


def load_target(target: WeightTarget, values: Tensor) -> None:
    """Give a target its part of a tensor's values, as the loader does; nothing if other ranks hold it."""
    assert target.shape == tuple(values.shape)
    if not target.is_elsewhere:
        target.load(MemoryTensor(target.name, values).sliced(target.part))
