"""How a linear layer gets its weight: the seam between layers and the forms that weights come in."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ..formats.checkpoint_tensor import CheckpointTensor
from ..kernels.layouts import LinearWeight
from ..kernels.ops import Ops


@dataclass(frozen=True, slots=True)
class LinearShape:
    """The shape of a linear layer's weight: [out_features, in_features], with a bias or without."""

    out_features: int
    in_features: int
    has_bias: bool


class WeightLoader(ABC):
    """Puts one weight together from the checkpoint's tensors, which come in any order and on any thread.

    A checkpoint tensor fills whole rows of the weight, so that fused layers (query, key and value; gate and up) hand
    their shards over one by one. With the last one the weight is made ready for the backend's products, so that no
    more than a few weights are ever held in two forms.

    Args:
        shape: of the whole weight.
        ops: the backend that will multiply by it.
        preparing: held while the backend prepares a weight; all loaders of a model share it.
    """

    def __init__(self, shape: LinearShape, ops: Ops, preparing: threading.Lock) -> None:
        self.shape = shape
        self._ops = ops
        self._preparing = preparing
        self._lock = threading.Lock()
        self._num_missing = shape.out_features * (2 if shape.has_bias else 1)
        self._bias: Tensor | None = None
        self._weight: LinearWeight | None = None

    @property
    def weight(self) -> LinearWeight:
        """The weight as kernels want it; only once every row is loaded."""
        assert self._weight is not None, "weights are loaded before they are used"
        return self._weight

    def load_rows(self, first_row: int, tensor: CheckpointTensor) -> None:
        """Fill the rows from `first_row` on with a matrix of the checkpoint."""
        self._read_rows(first_row, tensor)
        self._count(tensor.shape[0])

    def load_bias(self, first_row: int, tensor: CheckpointTensor) -> None:
        """Fill the bias from `first_row` on with a vector of the checkpoint."""
        assert self.shape.has_bias, "a bias is a target of loading only where there is one"
        with self._lock:
            if self._bias is None:  # a layer that other ranks hold never gets here
                self._bias = torch.empty(self.shape.out_features, dtype=torch.float32)
        tensor.copy_to(self._bias[first_row : first_row + tensor.shape[0]])
        self._count(tensor.shape[0])

    @abstractmethod
    def loaded_bytes(self, tensor: CheckpointTensor) -> int:
        """Return about the bytes that a matrix of the checkpoint will take in this weight."""

    @abstractmethod
    def _read_rows(self, first_row: int, tensor: CheckpointTensor) -> None:
        """Read a matrix of the checkpoint; several threads may be inside."""

    @abstractmethod
    def _assemble(self) -> LinearWeight:
        """Return the canonical weight, bias included; called once, when all rows were read."""

    def _count(self, num_rows: int) -> None:
        with self._lock:
            self._num_missing -= num_rows
            is_last = self._num_missing == 0
        if is_last:
            weight = self._assemble()
            with self._preparing:
                self._weight = self._ops.prepare_weight(weight)


class QuantMethod(ABC):
    """One way to hold weights. Layers call this and never ask which method it is.

    Args:
        ops: the backend that multiplies by the weights.
    """

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self._preparing = threading.Lock()

    @abstractmethod
    def create_weights(self, shape: LinearShape, *, dtype: torch.dtype | None, device: torch.device) -> WeightLoader:
        """Return what loads a weight of this shape; nothing is allocated before its first row comes.

        Args:
            shape: of the whole weight.
            dtype: of a dense matrix; None: as the checkpoint stores it.
            device: where the weight is to be.
        """

    def apply(self, weight: LinearWeight, x: Tensor) -> Tensor:
        """Multiply `x` [num_rows, in_features] by the weight; see `Ops.linear`."""
        return self._ops.linear(x, weight)
