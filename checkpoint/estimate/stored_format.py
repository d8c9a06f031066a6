"""In which format a checkpoint's weights will lie in memory: what an estimate goes by unless another is named."""

from __future__ import annotations

import math
from pathlib import Path

from pagewire.ipc.errors import ConfigError

from ..ggml_types import GGMLType
from ..gguf_file import GGUFFile
from ..gguf_metadata.mixtures import ROUTER
from ..model_config import ModelConfig
from .packed_bits import packed_bits
from .weights import WeightBits, format_bits

# Bits of a weight in the layout that the loader brings a type into, which may have more than the file.
_GGML_BITS = {
    GGMLType.F32: 16.0, GGMLType.F16: 16.0, GGMLType.BF16: 16.0, GGMLType.Q4_0: 5.0, GGMLType.Q4_1: 5.0,
    GGMLType.Q4_K: 5.0, GGMLType.Q5_0: 8.5, GGMLType.Q8_0: 8.5, GGMLType.Q5_1: 9.0, GGMLType.Q5_K: 9.0,
    GGMLType.Q6_K: 9.0, GGMLType.Q3_K: 9.0, GGMLType.Q2_K: 10.0, GGMLType.IQ4_NL: 8.5, GGMLType.IQ4_XS: 8.5,
}  # fmt: skip


def stored_bits(model: ModelConfig) -> WeightBits:
    """Return the bits of a checkpoint's weights as they are loaded.

    Raises:
        ConfigError: a GGUF file has a type that can't be loaded; the remedy is to name a format.
    """
    if model.file_format == "gguf":
        return _gguf_bits(Path(model.model_path))
    if model.quantization is not None:
        return packed_bits(model, model.quantization)
    # The engine rounds float32 checkpoints on a GPU: its matrix units take 16 bits.
    return format_bits("float16" if model.dtype == "float16" else "bfloat16")


def _gguf_bits(path: Path) -> WeightBits:
    with GGUFFile(path) as file:
        matrices = {name: tensor for name, tensor in file.tensors.items() if len(tensor.shape) > 1}
        main_type = file.main_type()
    assert main_type is not None, "a model has layers"
    bits_of = {name: _ggml_bits(path, name, tensor.ggml_type) for name, tensor in matrices.items()}
    embedding = bits_of["token_embd.weight"]
    # A stack of experts has three dimensions. Routers are counted apart.
    sizes = {
        name: math.prod(tensor.shape)
        for name, tensor in matrices.items()
        if name.startswith("blk.") and ROUTER not in name
    }
    return WeightBits(
        name=main_type.name,
        layers=sum(bits_of[name] * size for name, size in sizes.items()) / sum(sizes.values()),
        embedding=embedding,
        output=bits_of.get("output.weight", embedding),
    )


def _ggml_bits(path: Path, name: str, ggml_type: GGMLType) -> float:
    bits = _GGML_BITS.get(ggml_type)
    if bits is None:
        raise ConfigError(f"{path}: {name} has the type {ggml_type.name}, which is not supported; give --weights.")
    return bits
