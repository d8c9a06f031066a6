"""How a linear layer gets its weight: the seam between layers and the forms that weights come in."""

from __future__ import annotations

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


class QuantMethod(ABC):
    """One canonical layout: allocate it, fill it from checkpoint tensors, multiply by it.

    Layers call this and never ask which method it is. A checkpoint tensor fills whole rows of the weight, so that
    fused layers (query, key and value; gate and up) hand their shards over one by one.
    """

    @abstractmethod
    def create_weights(self, shape: LinearShape, *, dtype: torch.dtype, device: torch.device) -> LinearWeight:
        """Allocate a weight whose contents are undefined until its rows are loaded."""

    @abstractmethod
    def load_rows(self, weight: LinearWeight, first_row: int, tensor: CheckpointTensor) -> None:
        """Fill the rows from `first_row` on with a matrix of the checkpoint."""

    @abstractmethod
    def load_bias(self, weight: LinearWeight, first_row: int, tensor: CheckpointTensor) -> None:
        """Fill the bias from `first_row` on with a vector of the checkpoint."""

    def finish_loading(self, weight: LinearWeight) -> LinearWeight:
        """Return the weight as kernels want it, once every row is loaded."""
        return weight

    def apply(self, weight: LinearWeight, x: Tensor, ops: Ops) -> Tensor:
        """Multiply `x` [num_rows, in_features] by the weight; see `Ops.linear`."""
        return ops.linear(x, weight)
