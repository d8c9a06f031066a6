"""A checkpoint of one linear layer: for tests of what a packing allows and what it stands for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from pagewire.checkpoint.quantization.quantization_config import QuantizationConfig
from pagewire.checkpoint.quantization.schemes import Scheme
from pagewire.gpu_executor.formats.checkpoint_tensor import CheckpointTensor
from pagewire.gpu_executor.formats.quantized.assemble import assemble
from pagewire.gpu_executor.formats.safetensors import open_safetensors

MODULE = "model.layers.0.mlp.down_proj"


@contextmanager
def open_layer(
    directory: Path, tensors: dict[str, Tensor], scheme: Scheme | None
) -> Iterator[dict[str, CheckpointTensor]]:
    """Write a layer and give what is made of it, by the last part of the names; nothing of a weight is read yet.

    Args:
        directory: where the file is written.
        tensors: by the last part of their names.
        scheme: how they are packed; None: they are not.
    """
    save_file({f"{MODULE}.{name}": tensor for name, tensor in tensors.items()}, directory / "model.safetensors")
    quantization = QuantizationConfig(method="compressed-tensors", default=scheme)
    with open_safetensors(directory) as stored:
        assembled = assemble(stored, quantization, frozenset({MODULE}), str(directory))
        yield {tensor.name.removeprefix(f"{MODULE}."): tensor for tensor in assembled}


def unpacked(tensor: CheckpointTensor) -> Tensor:
    """Return a matrix as loaders that unpack it get it, float32."""
    matrix = torch.empty(tensor.shape)
    tensor.copy_to(matrix)
    return matrix
