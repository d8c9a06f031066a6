"""Which of a checkpoint's linear layers are quantized, and how each is."""

from __future__ import annotations

import functools
import re

import msgspec

from .schemes import Scheme


class SchemeRule(msgspec.Struct, frozen=True, kw_only=True):
    """An exception from the rule that all linear layers are stored alike.

    Attributes:
        pattern: regular expression that a module's name is matched with, from its first character on.
        scheme: of the modules that match; None: they are not quantized.
    """

    pattern: str
    scheme: Scheme | None


class QuantizationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a checkpoint's linear layers are stored.

    Attributes:
        method: what --quantization calls it.
        rules: the first one that matches a module counts.
        default: of modules that none matches; None: they are not quantized.
    """

    method: str
    default: Scheme | None
    rules: tuple[SchemeRule, ...] = ()

    def scheme_of(self, module: str) -> Scheme | None:
        """Return how a linear layer is stored; None: it is a plain matrix.

        Args:
            module: the name of its module as the checkpoint spells it ("model.layers.0.mlp.down_proj").
        """
        for rule in self.rules:
            if _compiled(rule.pattern).match(module):
                return rule.scheme
        return self.default


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
