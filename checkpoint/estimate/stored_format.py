"""In which format a checkpoint's weights will lie in memory: what an estimate goes by unless another is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pagewire.ipc.errors import ConfigError

from ..ggml_types import GGMLType
from ..gguf_file import GGUFFile
from ..model_config import ModelConfig
from .weights import WeightBits, WeightFormat, format_bits

# Bits of a weight in the layout that the loader brings a type into, which may have more than the file.
_GGML_BITS = {
    GGMLType.F32: 16.0, GGMLType.F16: 16.0, GGMLType.BF16: 16.0, GGMLType.Q4_0: 5.0, GGMLType.Q4_1: 5.0,
    GGMLType.Q4_K: 5.0, GGMLType.Q5_0: 8.5, GGMLType.Q8_0: 8.5, GGMLType.Q5_1: 9.0, GGMLType.Q5_K: 9.0,
    GGMLType.Q6_K: 9.0,
}  # fmt: skip


def stored_bits(model: ModelConfig) -> WeightBits:
    """Return the bits of a checkpoint's weights as they are loaded.

    Raises:
        ConfigError: its quantization is not known; the remedy is to name a format.
    """
    if model.file_format == "gguf":
        return _gguf_bits(Path(model.model_path))
    if model.quantization is not None:
        return format_bits(_quantized_format(model.quantization))
    # The engine rounds float32 checkpoints on a GPU: its matrix units take 16 bits.
    return format_bits("float16" if model.dtype == "float16" else "bfloat16")


def _gguf_bits(path: Path) -> WeightBits:
    with GGUFFile(path) as file:
        matrices = {name: tensor for name, tensor in file.tensors.items() if len(tensor.shape) == 2}
    bits_of = {name: _ggml_bits(path, name, tensor.ggml_type) for name, tensor in matrices.items()}
    embedding = bits_of["token_embd.weight"]
    sizes = {name: tensor.shape[0] * tensor.shape[1] for name, tensor in matrices.items() if name.startswith("blk.")}
    weights: dict[str, int] = {}
    for name, size in sizes.items():
        type_name = matrices[name].ggml_type.name
        weights[type_name] = weights.get(type_name, 0) + size
    return WeightBits(
        name=max(weights, key=lambda type_name: weights[type_name]),
        layers=sum(bits_of[name] * size for name, size in sizes.items()) / sum(sizes.values()),
        embedding=embedding,
        output=bits_of.get("output.weight", embedding),
    )


def _ggml_bits(path: Path, name: str, ggml_type: GGMLType) -> float:
    bits = _GGML_BITS.get(ggml_type)
    if bits is None:
        raise ConfigError(f"{path}: {name} has the type {ggml_type.name}, which is not supported; give --weights.")
    return bits


def _quantized_format(quantization: Mapping[str, object]) -> WeightFormat:
    method = str(quantization.get("quant_method", "unknown"))
    if method == "fp8":
        return "fp8"
    bits = _num_bits(quantization)
    by_bits: dict[object, WeightFormat] = {4: "int4", 8: "fp8" if _is_float(quantization) else "int8"}
    if bits not in by_bits:
        raise ConfigError(
            f"the checkpoint's quantization ({method}) does not say its bits in a known way; give --weights int4, int8 "
            "or fp8."
        )
    return by_bits[bits]


def _num_bits(quantization: Mapping[str, object]) -> object:
    """Return the bits of a weight; the keys are those of GPTQ and AWQ, bitsandbytes, and compressed-tensors."""
    if quantization.get("load_in_4bit"):
        return 4
    if quantization.get("load_in_8bit"):
        return 8
    if "bits" in quantization:
        return quantization["bits"]
    return _weights_of_groups(quantization).get("num_bits")


def _is_float(quantization: Mapping[str, object]) -> bool:
    return _weights_of_groups(quantization).get("type") == "float"


def _weights_of_groups(quantization: Mapping[str, object]) -> Mapping[str, object]:
    groups = quantization.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    return weights if isinstance(weights, Mapping) else {}
