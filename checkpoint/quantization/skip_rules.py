"""Lists of modules that a quantized checkpoint left alone: one reading of them for all methods.

They come as "ignore", "ignored_layers" or "modules_to_not_convert", and their entries as whole names
("model.layers.0.mlp.down_proj"), as names of what is above ("model.layers.0", "self_attn"), as ends of names
("mlp.gate") and, after "re:", as regular expressions.
"""

from __future__ import annotations

import re

from ..json_reader import JSONReader
from .quantization_config import SchemeRule

# No tool quantizes the output layer unless it is told to: it decides between tokens by small differences.
PLAIN_OUTPUT_LAYER = SchemeRule(pattern=r"lm_head$", scheme=None)

_REGEX_PREFIX = "re:"


def read_skip_rules(stated: JSONReader, key: str, *, by_substring: bool = False) -> tuple[SchemeRule, ...]:
    """Read a list of modules that are not quantized; empty if the list is, or is not there.

    Args:
        stated: quantization_config.
        key: of the list.
        by_substring: an entry counts wherever its characters stand in a module's name, so that "mlp.gate" means
            mlp.gate_proj, too. Otherwise it names a module, which may be given without what is above it and which
            stands for all that is below it: "mlp.gate" means mlp.gate alone.

    Raises:
        ConfigError: if it is no list of strings, or holds what is no regular expression after "re:".
    """
    entries = stated.get_str_list(key)
    if not entries:
        return ()
    patterns = [_pattern_of(entry, by_substring) for entry in entries]
    for entry, pattern in zip(entries, patterns, strict=True):
        check_pattern(stated, key, entry, pattern)
    return tuple(SchemeRule(pattern=pattern, scheme=None) for pattern in patterns)


def read_output_layer_rule(stated: JSONReader) -> tuple[SchemeRule, ...]:
    """Read whether the output layer is quantized like all others (lm_head: true); unless it says so, it is plain.

    Raises:
        ConfigError: if it is neither true nor false.
    """
    return () if stated.get_bool("lm_head", False) else (PLAIN_OUTPUT_LAYER,)


def check_pattern(stated: JSONReader, key: str, entry: str, pattern: str) -> None:
    """Refuse what is no regular expression.

    Args:
        stated: quantization_config.
        key: where the entry stands.
        entry: as it is written there.
        pattern: the expression in it.

    Raises:
        ConfigError: if it can't be compiled.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise stated.fault(key, f"holds {entry!r}, which is no regular expression: {error}") from error


def _pattern_of(entry: str, by_substring: bool) -> str:
    if entry.startswith(_REGEX_PREFIX):
        return entry.removeprefix(_REGEX_PREFIX)
    escaped = re.escape(entry)
    return f".*{escaped}" if by_substring else rf"(?:.*\.)?{escaped}(?:\.|$)"
