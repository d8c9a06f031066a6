"""The numbers by which some families differ from Llama, as their config.json states them.

One function a way of stating them; `Family.read_scalars` names it.
"""

from __future__ import annotations

import math

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


def gemma2_scalars(config: JSONReader) -> Scalars:
    """Return Gemma 2's: both kinds of logits are bounded, unless a bound is null."""
    return _gemma_scalars(config, default_attention_soft_cap=50.0, default_logit_soft_cap=30.0)


def gemma3_scalars(config: JSONReader) -> Scalars:
    """Return Gemma 3's, where norms of queries and keys took the place of the bounds."""
    return _gemma_scalars(config, default_attention_soft_cap=None, default_logit_soft_cap=None)


def _gemma_scalars(
    config: JSONReader, *, default_attention_soft_cap: float | None, default_logit_soft_cap: float | None
) -> Scalars:
    return Scalars(
        attention_scale=(config.get_positive_float("query_pre_attn_scalar") or 256.0) ** -0.5,
        attention_soft_cap=_soft_cap(config, "attn_logit_softcapping", default_attention_soft_cap),
        # As the paper and llama.cpp have it. transformers rounds it to the dtype of activations, which in bfloat16
        # is up to 1 part in 512 off: a choice of that implementation's, that float32 activations should not copy.
        embedding_scale=math.sqrt(config.require_int("hidden_size")),
        logit_soft_cap=_soft_cap(config, "final_logit_softcapping", default_logit_soft_cap),
    )


def _soft_cap(config: JSONReader, key: str, default: float | None) -> float | None:
    # null, unlike an absent key, says that there is none
    return config.get_positive_float(key) if config.has(key) else default
