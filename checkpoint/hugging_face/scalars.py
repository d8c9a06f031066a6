"""The numbers by which some families differ from Llama, as their config.json states them.

One function a way of stating them; `Family.read_scalars` names it.
"""

from __future__ import annotations

import msgspec

from ..json_reader import JSONReader


class Scalars(msgspec.Struct, frozen=True, kw_only=True):
    """Multipliers and bounds. See the attributes of the same names of `ModelConfig`."""

    attention_scale: float | None = None
    attention_soft_cap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_soft_cap: float | None = None


def no_scalars(config: JSONReader) -> Scalars:
    """Return those of families that have none."""
    return Scalars()


def granite_scalars(config: JSONReader) -> Scalars:
    """Return Granite's multipliers. Absent ones are 1, that of attention logits too."""
    return Scalars(
        attention_scale=config.get_positive_float("attention_multiplier", 1.0),
        embedding_scale=config.get_positive_float("embedding_multiplier") or 1.0,
        residual_scale=config.get_positive_float("residual_multiplier") or 1.0,
        logit_scale=1.0 / (config.get_positive_float("logits_scaling") or 1.0),
    )
