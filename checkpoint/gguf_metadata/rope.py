"""The rotary embedding's scaling in a GGUF file: by its parameters, or by divisors of the frequencies in tensors."""

from __future__ import annotations

import math

from pagewire.ipc.errors import ConfigError

from ..ggml_types import GGMLType
from ..gguf_file import GGUFFile
from ..model_config import RopeScaling
from .numbers import positive_float, positive_int

_LLAMA3_FACTORS = "rope_freqs.weight"
_LONGROPE_FACTORS = ("rope_factors_short.weight", "rope_factors_long.weight")


def read_rope_scaling(file: GGUFFile, name: str, context_length: int, rotary_dim: int) -> RopeScaling | None:
    """Read how the frequencies are stretched; None if they are not.

    Args:
        file: the open model.
        name: its architecture, the prefix of its keys.
        context_length: the longest context, as the file states it.
        rotary_dim: channels of each head that rotate.

    Raises:
        ConfigError: if a number or a tensor of factors is missing or impossible, or the kind of scaling is unknown.
    """
    prefix = f"{name}.rope.scaling"
    kind = file.get_str(f"{prefix}.type", "none")
    original = positive_int(file, f"{prefix}.original_context_length", context_length)
    # Converters of Phi-3 state no kind: that the tensors are there says it.
    if kind == "longrope" or (kind == "none" and any(tensor in file.tensors for tensor in _LONGROPE_FACTORS)):
        return _read_longrope(file, prefix, context_length, original, rotary_dim)
    if kind == "none":
        if _LLAMA3_FACTORS not in file.tensors:
            return None
        factors = _frequency_factors(file, _LLAMA3_FACTORS, rotary_dim)
        return RopeScaling(kind="llama3", original_max_position=original, frequency_factors=factors)
    for tensor in (_LLAMA3_FACTORS, *_LONGROPE_FACTORS):
        if tensor in file.tensors:
            raise ConfigError(f"{file.path}: has both {kind} rotary scaling and {tensor}, which is not supported")
    factor = positive_float(file, f"{prefix}.factor")
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor, original_max_position=context_length)
    if kind == "yarn":
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_max_position=original,
            beta_fast=positive_float(file, f"{prefix}.yarn_beta_fast", 32.0),
            beta_slow=positive_float(file, f"{prefix}.yarn_beta_slow", 1.0),
            attention_factor=_yarn_attention_factor(file, prefix, factor),
        )
    raise ConfigError(f"{file.path}: the rotary scaling {kind!r} is not known; known are none, linear, yarn, longrope")


def read_local_theta(file: GGUFFile, name: str) -> float | None:
    """Read the base of the layers that attend to a window; None if it is that of the others.

    Raises:
        ConfigError: if it is not a number above 0.
    """
    # Gemma 3's files don't state it, with few exceptions: llama.cpp knows it.
    return positive_float(file, "gemma3.rope.freq_base_swa", 10_000.0) if name == "gemma3" else None


def _read_longrope(file: GGUFFile, prefix: str, context_length: int, original: int, rotary_dim: int) -> RopeScaling:
    if original < 2:  # a formula divides by its logarithm
        raise ConfigError(f"{file.path}: {prefix}.original_context_length is {original}, must be at least 2")
    short_factors, long_factors = (_frequency_factors(file, tensor, rotary_dim) for tensor in _LONGROPE_FACTORS)
    stated = f"{prefix}.attn_factor"
    return RopeScaling(
        kind="longrope",
        factor=context_length / original,
        original_max_position=original,
        attention_factor=positive_float(file, stated) if stated in file.metadata else None,
        short_factors=short_factors,
        long_factors=long_factors,
    )


def _yarn_attention_factor(file: GGUFFile, prefix: str, factor: float) -> float | None:
    # GGUF states a multiple of the paper's factor, Hugging Face the product.
    multiple = file.get_float(f"{prefix}.yarn_attn_factor") or file.get_float(f"{prefix}.attn_factor")
    if multiple is None or multiple == 1.0:
        return None
    return multiple * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)


def _frequency_factors(file: GGUFFile, name: str, rotary_dim: int) -> tuple[float, ...]:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise ConfigError(f"{file.path}: lacks the tensor {name}, which its rotary scaling needs")
    if tensor.ggml_type is not GGMLType.F32 or tensor.shape != (rotary_dim // 2,):
        raise ConfigError(
            f"{file.path}: {name} is {tensor.ggml_type.name} {list(tensor.shape)}, must be F32 [{rotary_dim // 2}]"
        )
    with file.tensor_bytes(name) as data, data.cast("f") as values:
        factors = tuple(values.tolist())
    for factor in factors:
        if not 0 < factor < math.inf:
            raise ConfigError(f"{file.path}: {name} has {factor}; factors are numbers above 0")
    return factors
