"""quantization_config of GPTQ checkpoints, as GPTQModel, AutoGPTQ and Optimum write it."""

from __future__ import annotations

import re

from ..json_reader import JSONReader
from .quantization_config import QuantizationConfig, SchemeRule
from .schemes import GPTQScheme
from .skip_rules import check_pattern, read_output_layer_rule, read_skip_rules

_BITS = (4, 8)
# What the stored zero points lack, by checkpoint_format.
_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
# How keys of "dynamic" begin: modules to leave alone, and modules to treat in another way (which needs no sign).
_SKIPPING, _OVERRIDING = "-:", "+:"
_GROUP_MULTIPLE = 32


def read_gptq_config(stated: JSONReader) -> QuantizationConfig:
    """Read which linear layers of a GPTQ checkpoint are quantized, and how.

    desc_act is not read: the tensor `g_idx` says which channels share a group.

    Raises:
        ConfigError: if a key has a value that is not supported. The message names it.
    """
    default = _read_scheme(stated, zero_offset=_read_zero_offset(stated))
    rules = read_output_layer_rule(stated)
    rules += read_skip_rules(stated, "modules_to_not_convert", by_substring=True)
    rules += _read_dynamic(stated, default)
    rules += _read_quantized_modules(stated)
    return QuantizationConfig(method="gptq", default=default, rules=rules)


def read_group_size(stated: JSONReader, key: str) -> int | None:
    """Read how many input channels share a scale; None: all of a row.

    Args:
        stated: quantization_config, or what overrides it.
        key: where it stands; absent counts as 128, which the tools take.

    Raises:
        ConfigError: if it is neither -1 nor a multiple of 32.
    """
    group_size = stated.get_int(key, 128, minimum=-1)
    if group_size == -1:
        return None
    if not group_size or group_size % _GROUP_MULTIPLE:
        raise stated.fault(
            key,
            f"is {group_size}; groups may be -1 (a whole row) or a multiple of {_GROUP_MULTIPLE} input channels. "
            "Quantize the model anew with group_size 32, 64 or 128.",
        )
    return group_size


def _read_zero_offset(stated: JSONReader) -> int | None:
    # Older tools called it "format"; neither key was there before the second version.
    key = "checkpoint_format" if stated.has("checkpoint_format") else "format"
    checkpoint_format = stated.get_str(key)
    if checkpoint_format is None:
        return None
    if checkpoint_format not in _ZERO_OFFSETS:
        raise stated.fault(key, f"is {checkpoint_format!r}; readable are {', '.join(_ZERO_OFFSETS)}")
    return _ZERO_OFFSETS[checkpoint_format]


def _read_scheme(stated: JSONReader, zero_offset: int | None, base: GPTQScheme | None = None) -> GPTQScheme:
    """Read a scheme; what is not stated is as in `base`."""
    bits = stated.get_int("bits", base.bits if base else None)
    if bits is None:
        raise stated.missing("bits")
    if bits not in _BITS:
        raise stated.fault("bits", f"is {bits}; GPTQ weights may have {' or '.join(map(str, _BITS))} bits here")
    inherits_groups = base is not None and stated.get_int("group_size", minimum=-1) is None
    return GPTQScheme(
        bits=bits,
        group_size=base.group_size if base and inherits_groups else read_group_size(stated, "group_size"),
        is_symmetric=stated.get_bool("sym", base.is_symmetric if base else True),
        zero_offset=zero_offset,
    )


def _read_dynamic(stated: JSONReader, default: GPTQScheme) -> tuple[SchemeRule, ...]:
    """Read the exceptions by module, in GPTQModel's way: regular expressions, of which the first to match counts."""
    dynamic = stated.get_object("dynamic")
    if dynamic is None:
        return ()
    rules = []
    for key in dynamic.data:
        pattern = key.removeprefix(_SKIPPING).removeprefix(_OVERRIDING)
        check_pattern(stated, "dynamic", key, pattern)
        overrides = dynamic.get_object(key)
        if key.startswith(_SKIPPING):
            scheme = None
        else:
            scheme = _read_scheme(overrides, default.zero_offset, default) if overrides else default
        rules.append(SchemeRule(pattern=pattern, scheme=scheme))
    return tuple(rules)


def _read_quantized_modules(stated: JSONReader) -> tuple[SchemeRule, ...]:
    """Read Optimum's list of what is quantized in each block; the modules that it leaves out are not."""
    key = "modules_in_block_to_quantize"
    listed = stated.data.get(key)
    if not listed:
        return ()
    # A list of names, or of lists that were quantized one after the other.
    groups = listed if isinstance(listed, list) else [listed]
    names = [name for group in groups for name in (group if isinstance(group, list) else [group])]
    if not all(isinstance(name, str) for name in names):
        raise stated.fault(key, f"must be a list of module names or of lists of them, is {listed!r}")
    # The output layer stands in no block.
    inside = "|".join(re.escape(name) for name in names)
    return (SchemeRule(pattern=rf"(?!lm_head$|.*(?:{inside}))", scheme=None),)
