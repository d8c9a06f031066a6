"""The dense layout: plain matrices in the compute dtype, whatever the checkpoint packs them in."""

from __future__ import annotations

import torch

from ..formats.checkpoint_tensor import CheckpointTensor
from ..kernels.layouts import DenseWeight, LinearWeight
from .base import LinearShape, QuantMethod


class DenseMethod(QuantMethod):
    """Unpack every matrix at load."""

    def create_weights(self, shape: LinearShape, *, dtype: torch.dtype, device: torch.device) -> LinearWeight:
        weight = torch.empty(shape.out_features, shape.in_features, dtype=dtype, device=device)
        bias = torch.empty(shape.out_features, dtype=dtype, device=device) if shape.has_bias else None
        return DenseWeight(weight=weight, bias=bias)

    def load_rows(self, weight: LinearWeight, first_row: int, tensor: CheckpointTensor) -> None:
        assert isinstance(weight, DenseWeight), "this method made the weight"
        tensor.copy_to(weight.weight[first_row : first_row + tensor.shape[0]])

    def load_bias(self, weight: LinearWeight, first_row: int, tensor: CheckpointTensor) -> None:
        assert isinstance(weight, DenseWeight), "this method made the weight"
        assert weight.bias is not None, "a bias is a target of loading only where there is one"
        tensor.copy_to(weight.bias[first_row : first_row + tensor.shape[0]])
