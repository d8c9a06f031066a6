"""quant_method "compressed-tensors": groups of modules, each with its own packing, as llm-compressor writes them.

A group names its modules by class ("Linear"), by name or by a regular expression after "re:". Where several fit, a name
goes before an expression, and that before a class; of several of one kind the first in the file counts. What the
"ignore" list names is not quantized.

How activations are to be rounded is of no account: kernels here keep them as they are, or round them to 8 bits with a
scale for each 32 channels of a token, which loses less than what these files ask for.

Source: https://github.com/vllm-project/compressed-tensors (README, config and quantization packages).
"""

from __future__ import annotations

import re

import msgspec

from ..json_reader import JSONReader
from .fp8_config import read_block_shape
from .quantization_config import QuantizationConfig, SchemeRule
from .schemes import Fp8Scheme, Int8Scheme, PackedIntScheme, Scheme
from .skip_rules import check_pattern, read_skip_rules

METHOD = "compressed-tensors"

_PACKED, _INTEGERS, _FLOATS, _NAIVE, _DENSE, _MIXED = (
    "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense", "mixed-precision",
)  # fmt: skip
_FORMATS = (_PACKED, _INTEGERS, _FLOATS, _NAIVE, _DENSE)
# The class of every layer that may be quantized here, and what other tools call it.
_LINEAR = "linear"
_REGEX_PREFIX = "re:"
_GRANULARITIES = ("tensor", "channel", "block")
_PACKED_BITS = (4, 8)
_MIN_BITS, _MAX_BITS = 2, 8
# "actorder", each with a synonym: whether channels were given to groups in the order in which they were quantized.
_ACTIVATION_ORDERS = {"group": True, "dynamic": True, "weight": False, "static": False}


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    """What a group says: its modules, and how they are stored."""

    targets: tuple[str, ...]
    scheme: Scheme | None


def read_compressed_tensors(stated: JSONReader) -> QuantizationConfig:
    """Read how a compressed-tensors checkpoint is stored.

    Args:
        stated: quantization_config.

    Raises:
        ConfigError: if a key has a value that is not supported. The message names it.
    """
    _refuse_other_compressions(stated)
    groups_of = stated.get_object("config_groups")
    groups = [] if groups_of is None else [_read_group(stated, groups_of, name) for name in groups_of.data]
    rules = [*read_skip_rules(stated, "ignore")]
    rules += [_name_rule(target, group) for group in groups for target in group.targets if _is_name(target)]
    rules += [_regex_rule(target, group) for group in groups for target in group.targets if _is_regex(target)]
    defaults = [group.scheme for group in groups if any(target.lower() == _LINEAR for target in group.targets)]
    return QuantizationConfig(method=METHOD, default=defaults[0] if defaults else None, rules=tuple(rules))


def _refuse_other_compressions(stated: JSONReader) -> None:
    sparsity = stated.get_object("sparsity_config")
    sparse_format = None if sparsity is None else sparsity.get_str("format", _DENSE)
    if sparsity is not None and sparse_format != _DENSE:
        raise sparsity.fault("format", f"is {sparse_format!r}: sparse weights can't be read; readable is {_DENSE!r}")
    transforms = stated.get_object("transform_config")
    if transforms is not None and transforms.data.get("config_groups"):
        raise stated.fault("transform_config", "asks for rotations of weights and activations, which are not supported")
    kv_cache = stated.get_object("kv_cache_scheme")
    if kv_cache is not None and (kv_cache.get_str("type", "int"), kv_cache.get_int("num_bits", 8)) != ("float", 8):
        raise stated.fault("kv_cache_scheme", "asks for keys and values that are no 8-bit floats; leave the key out")


def _read_group(stated: JSONReader, groups: JSONReader, name: str) -> _Group:
    group = groups.get_object(name)
    targets = None if group is None else group.get_str_list("targets")
    if group is None or not targets:
        raise groups.fault(name, "names no targets")
    for target in filter(_is_regex, targets):
        check_pattern(group, "targets", target, target.removeprefix(_REGEX_PREFIX))
    weights = group.get_object("weights")
    if weights is None:
        return _Group(targets=tuple(targets), scheme=None)
    where = stated if group.get_str("format") is None else group
    file_format = where.get_str("format", _DENSE) or _DENSE
    if file_format == _MIXED:
        file_format = _format_of(weights, has_activations=group.data.get("input_activations") is not None)
    if file_format not in _FORMATS:
        raise where.fault("format", f"is {file_format!r}; readable are {', '.join(_FORMATS)}")
    return _Group(targets=tuple(targets), scheme=_scheme(weights, file_format, _has_static_activations(group)))


def _format_of(weights: JSONReader, *, has_activations: bool) -> str:
    """Return the format that the tools choose for a group of a mixed file, if the group does not say."""
    if weights.get_str("type", "int") == "float":
        return _FLOATS
    return _INTEGERS if has_activations else _PACKED


def _scheme(weights: JSONReader, file_format: str, is_static: bool) -> Scheme | None:
    if file_format == _DENSE:
        return None
    kind, bits = weights.get_str("type", "int"), weights.get_int("num_bits", 8)
    if weights.data.get("dynamic"):
        raise weights.fault("dynamic", "must be false: weights are stored with their scales")
    if kind == "float" and file_format in (_FLOATS, _NAIVE):
        return _fp8_scheme(weights, bits, is_static)
    if kind == "int" and file_format in (_INTEGERS, _NAIVE, _PACKED):
        return _integer_scheme(weights, bits or 8, file_format, is_static)
    raise weights.fault("type", f"is {kind!r}, which {file_format} never holds")


def _fp8_scheme(weights: JSONReader, bits: int | None, is_static: bool) -> Scheme:
    if bits != 8:
        raise weights.fault("num_bits", f"is {bits}; readable floats have 8")
    if not weights.get_bool("symmetric", True):
        raise weights.fault("symmetric", "must be true for floats, which have no zero points")
    block_shape = read_block_shape(weights, "block_structure")
    match _strategy(weights):
        case "tensor":
            return Fp8Scheme(granularity="tensor", has_static_activations=is_static)
        case "channel":
            return Fp8Scheme(granularity="channel", has_static_activations=is_static)
        case "block" if block_shape is not None:
            return Fp8Scheme(granularity="block", block_shape=block_shape, has_static_activations=is_static)
        case "block":
            raise weights.missing("block_structure")
        case other:
            raise weights.fault("strategy", f"is {other!r}; readable for floats are {', '.join(_GRANULARITIES)}")


def _integer_scheme(weights: JSONReader, bits: int, file_format: str, is_static: bool) -> Scheme:
    group_size = _group_size(weights)
    is_symmetric = weights.get_bool("symmetric", True)
    has_permutation = _has_permutation(weights)
    if has_permutation and group_size is None:
        raise weights.fault("actorder", "gives channels to groups, but a row is one group")
    if file_format == _PACKED:
        if bits not in _PACKED_BITS:
            raise weights.fault("num_bits", f"is {bits}; readable packed integers have 4 or 8")
        return PackedIntScheme(
            bits=bits, group_size=group_size, is_symmetric=is_symmetric, has_permutation=has_permutation
        )
    if not _MIN_BITS <= bits <= _MAX_BITS:
        raise weights.fault("num_bits", f"is {bits}; readable integers have {_MIN_BITS} to {_MAX_BITS}")
    return Int8Scheme(
        group_size=group_size,
        is_symmetric=is_symmetric,
        has_static_activations=is_static,
        has_permutation=has_permutation,
    )


def _has_permutation(weights: JSONReader) -> bool:
    """Return whether a tensor says which channels make a group; otherwise groups are runs of channels."""
    match weights.data.get("actorder"):
        case None | False:
            return False
        case True:
            return True
        case str(order) if order.lower() in _ACTIVATION_ORDERS:
            return _ACTIVATION_ORDERS[order.lower()]
        case other:
            raise weights.fault("actorder", f"is {other!r}; readable are {', '.join(_ACTIVATION_ORDERS)}, true, false")


def _group_size(weights: JSONReader) -> int | None:
    match strategy := _strategy(weights):
        case "tensor" | "channel":
            return None
        case "group":
            return weights.require_int("group_size")
    raise weights.fault("strategy", f"is {strategy!r}; readable for integers are tensor, channel, group")


def _strategy(weights: JSONReader) -> str:
    """Return what a scale belongs to; where it is not stated, the size of groups tells."""
    stated = weights.get_str("strategy")
    if stated is not None:
        return stated.lower()
    group_size = weights.get_int("group_size", minimum=-1)
    if group_size is None:
        return "tensor"
    return "group" if group_size > 0 else "channel"


def _has_static_activations(group: JSONReader) -> bool:
    activations = group.get_object("input_activations")
    return activations is not None and activations.data.get("dynamic", False) is False


def _is_regex(target: str) -> bool:
    return target.startswith(_REGEX_PREFIX)


def _is_name(target: str) -> bool:
    # What names another class than a linear layer's matches no name either, and so nothing.
    return not _is_regex(target) and target.lower() != _LINEAR


def _name_rule(target: str, group: _Group) -> SchemeRule:
    return SchemeRule(pattern=re.escape(target) + "$", scheme=group.scheme)


def _regex_rule(target: str, group: _Group) -> SchemeRule:
    return SchemeRule(pattern=target.removeprefix(_REGEX_PREFIX), scheme=group.scheme)
