"""The dense method: plain matrices in the compute dtype, whatever the checkpoint packs them in."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from ..formats.checkpoint_tensor import CheckpointTensor
from ..kernels.layouts import DenseWeight, LinearWeight
from ..kernels.ops import Ops
from .base import LinearShape, QuantMethod, WeightLoader


class DenseMethod(QuantMethod):
    """Unpack every matrix at load."""

    def create_weights(self, shape: LinearShape, *, dtype: torch.dtype | None, device: torch.device) -> WeightLoader:
        return DenseLoader(shape, self._ops, self._preparing, dtype or torch.float32, device)


class DenseLoader(WeightLoader):
    """Unpacks the shards into the rows of one matrix."""

    def __init__(
        self, shape: LinearShape, ops: Ops, preparing: threading.Lock, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(shape, ops, preparing)
        self._dtype = dtype
        self._device = device
        self._matrix: Tensor | None = None

    def loaded_bytes(self, tensor: CheckpointTensor) -> int:
        return tensor.shape[0] * self.shape.in_features * self._dtype.itemsize

    def _read_rows(self, first_row: int, tensor: CheckpointTensor) -> None:
        with self._lock:
            if self._matrix is None:
                size = (self.shape.out_features, self.shape.in_features)
                self._matrix = torch.empty(size, dtype=self._dtype, device=self._device)
        tensor.copy_to(self._matrix[first_row : first_row + tensor.shape[0]])

    def _assemble(self) -> LinearWeight:
        assert self._matrix is not None, "every row was read into it"
        bias = None if self._bias is None else self._bias.to(self._device)
        weight, self._matrix = DenseWeight(self._matrix, bias), None
        return weight
