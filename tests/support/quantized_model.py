"""A tiny checkpoint with quantized layers, and the plain one that it stands for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.stored_layers import StoredLayer

Writer = Callable[[Tensor], StoredLayer]


class QuantizedModel(NamedTuple):
    """Two directories: the quantized checkpoint, and one of its values in float32."""

    path: Path
    reference: Path


def quantize_layers(
    source: Path, directory: Path, writer_of: Callable[[str], Writer | None], quantization: dict[str, Any]
) -> QuantizedModel:
    """Write a checkpoint's matrices anew.

    Args:
        source: a plain checkpoint of one file, float32.
        directory: where both are made.
        writer_of: how a module's matrix is stored; None: as it is.
        quantization: quantization_config of config.json.
    """
    tensors = load_file(source / "model.safetensors")
    stored, values = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        writer = writer_of(module) if kind == "weight" and tensor.dim() == 2 else None
        if writer is None:
            continue
        layer = writer(tensor)
        del stored[name]
        stored |= {f"{module}.{part}": packed for part, packed in layer.tensors.items()}
        values[name] = layer.values.to(torch.float32)
    paths = QuantizedModel(directory / "quantized", directory / "reference")
    for path, content in zip(paths, (stored, values), strict=True):
        shutil.copytree(source, path)
        save_file(content, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (paths.path / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    return paths
