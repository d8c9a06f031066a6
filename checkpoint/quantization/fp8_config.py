"""quant_method "fp8": weights in float8_e4m3fn with scales a matrix or a block, as AutoFP8 and Transformers write them.

Source: DeepSeek-V3's published config.json for block scales.
"""

from __future__ import annotations

from typing import Any

from ..json_reader import JSONReader
from .quantization_config import QuantizationConfig
from .schemes import Fp8Scheme, RoundedScheme, Scheme
from .skip_rules import PLAIN_OUTPUT_LAYER, read_skip_rules

METHOD = "fp8"

_ACTIVATION_SCHEMES = ("dynamic", "static")
# Lists of modules that are not quantized, by whose tools they are.
_SKIP_KEYS = ("ignored_layers", "modules_to_not_convert")


def read_fp8(stated: JSONReader) -> QuantizationConfig:
    """Read how an fp8 checkpoint is stored.

    Args:
        stated: quantization_config.

    Raises:
        ConfigError: if a key has a value that is not supported. The message names it.
    """
    if (number_format := stated.get_str("fmt", "e4m3")) != "e4m3":
        raise stated.fault("fmt", f"is {number_format!r}; readable is 'e4m3'")
    scheme = _scheme(stated)
    skipped = [rule for key in _SKIP_KEYS for rule in read_skip_rules(stated, key)]
    return QuantizationConfig(method=METHOD, default=scheme, rules=(*skipped, PLAIN_OUTPUT_LAYER))


def read_block_shape(stated: JSONReader, key: str) -> tuple[int, int] | None:
    """Read the rows and columns of a block that shares a scale; None if absent.

    Raises:
        ConfigError: if it is no pair of positive whole numbers.
    """
    value: Any = stated.data.get(key)  # Any: JSON as it comes
    if value is None:
        return None
    are_sizes = isinstance(value, list) and all(type(size) is int and size > 0 for size in value)
    if not are_sizes or len(value) != 2:
        raise stated.fault(key, f"must be a block's rows and columns, like [128, 128], is {value!r}")
    return value[0], value[1]


def _scheme(stated: JSONReader) -> Scheme:
    activations = stated.get_str("activation_scheme", "dynamic")
    if activations not in _ACTIVATION_SCHEMES:
        raise stated.fault("activation_scheme", f"is {activations!r}; readable are {', '.join(_ACTIVATION_SCHEMES)}")
    block_shape = read_block_shape(stated, "weight_block_size")
    is_static = activations == "static"
    if is_static and block_shape is not None:
        raise stated.fault("activation_scheme", "is 'static', which weights scaled by block never have")
    if not stated.get_bool("is_checkpoint_fp8_serialized", True):
        return RoundedScheme(to="fp8")
    if block_shape is not None:
        return Fp8Scheme(granularity="block", block_shape=block_shape)
    return Fp8Scheme(granularity="tensor", has_static_activations=is_static)
