"""quantization_config of AWQ checkpoints, as AutoAWQ and transformers write it."""

from __future__ import annotations

from ..json_reader import JSONReader
from .gptq_config import read_group_size
from .quantization_config import QuantizationConfig
from .schemes import AWQScheme
from .skip_rules import read_output_layer_rule, read_skip_rules

_BITS = 4
_VERSION = "gemm"


def read_awq_config(stated: JSONReader) -> QuantizationConfig:
    """Read which linear layers of an AWQ checkpoint are quantized, and how.

    AutoAWQ's own names of keys (w_bit, q_group_size) are read where those of transformers are not there.

    Raises:
        ConfigError: if a key has a value that is not supported. The message names it.
    """
    bits_key = _first_of(stated, "bits", "w_bit")
    bits = stated.require_int(bits_key)
    if bits != _BITS:
        raise stated.fault(bits_key, f"is {bits}; AWQ weights have {_BITS} bits here")
    if not stated.get_bool("zero_point", True):
        raise stated.fault("zero_point", "is false; the format is readable with zero points alone")
    version_key = _first_of(stated, "version", "format")
    version = stated.get_str(version_key, _VERSION) or _VERSION
    if version.lower() != _VERSION:
        raise stated.fault(
            version_key, f"is {version!r}; readable is {_VERSION!r} alone. Quantize the model anew in that version."
        )
    return QuantizationConfig(
        method="awq",
        default=AWQScheme(group_size=read_group_size(stated, _first_of(stated, "group_size", "q_group_size"))),
        # AutoAWQ leaves a module alone if its name has one of these anywhere.
        rules=read_output_layer_rule(stated) + read_skip_rules(stated, "modules_to_not_convert", by_substring=True),
    )


def _first_of(stated: JSONReader, key: str, other: str) -> str:
    return other if stated.data.get(key) is None and stated.data.get(other) is not None else key
