"""quant_method "fp8": weights in float8_e4m3fn with scales a matrix or a block, as AutoFP8 and Transformers write them.

Source: DeepSeek-V3's published config.json for block scales.
"""

from __future__ import annotations

import re
from typing import Any

from ..json_reader import JSONReader
from .quantization_config import QuantizationConfig
from .schemes import Fp8Scheme, RoundedScheme, Scheme
from .skip_rules import read_output_layer_rule, read_skip_rules

METHOD = "fp8"

_ACTIVATION_SCHEMES = ("dynamic", "static")
# Lists of modules that are not quantized, by whose tools they are.
_SKIP_KEYS = ("ignored_layers", "modules_to_not_convert")
# How compressed-tensors may spell a block's shape.
_BLOCK_TEXT = re.compile(r"(?P<rows>[0-9]{1,9})x(?P<columns>[0-9]{1,9})")


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
    return QuantizationConfig(method=METHOD, default=scheme, rules=(*skipped, *read_output_layer_rule(stated)))


def read_block_shape(stated: JSONReader, key: str) -> tuple[int, int] | None:
    """Read the rows and columns of a block that shares a scale, [128, 128] or "128x128"; None if absent.

    Raises:
        ConfigError: if it is no pair of positive whole numbers.
    """
    value: Any = stated.data.get(key)  # Any: JSON as it comes
    if value is None:
        return None
    if isinstance(value, str) and (match := _BLOCK_TEXT.fullmatch(value)):
        value = [int(match["rows"]), int(match["columns"])]
    are_sizes = isinstance(value, list) and all(type(size) is int and size > 0 for size in value)
    if not are_sizes or len(value) != 2:
        raise stated.fault(key, f"must be a block's rows and columns, like [128, 128], is {value!r}")
    return value[0], value[1]


def _refuse_serialized_keys(stated: JSONReader) -> None:
    """Refuse what only a checkpoint of fp8 numbers can have, of one that says that it is a plain one."""
    why = "but is_checkpoint_fp8_serialized is false: a plain checkpoint's weights get a scale a row as they are loaded"
    if stated.data.get("weight_block_size") is not None:
        raise stated.fault("weight_block_size", f"is {stated.data['weight_block_size']!r}, {why}. Leave the key out.")
    if stated.get_str("activation_scheme") == "static":
        raise stated.fault(
            "activation_scheme", f"is 'static', {why}, and it has no scales of activations. Use dynamic."
        )


def _scheme(stated: JSONReader) -> Scheme:
    activations = stated.get_str("activation_scheme", "dynamic")
    if activations not in _ACTIVATION_SCHEMES:
        raise stated.fault("activation_scheme", f"is {activations!r}; readable are {', '.join(_ACTIVATION_SCHEMES)}")
    block_shape = read_block_shape(stated, "weight_block_size")
    is_static = activations == "static"
    if is_static and block_shape is not None:
        raise stated.fault("activation_scheme", "is 'static', which weights scaled by block never have")
    if not stated.get_bool("is_checkpoint_fp8_serialized", True):
        _refuse_serialized_keys(stated)
        return RoundedScheme(to="fp8")
    if block_shape is not None:
        return Fp8Scheme(granularity="block", block_shape=block_shape)
    return Fp8Scheme(granularity="tensor", has_static_activations=is_static)
