"""The numbers by which some families differ from Llama, as a GGUF file states them."""

from __future__ import annotations

import math

from ..gguf_file import GGUFFile
from ..hugging_face.scalars import Scalars
from .numbers import positive_float, positive_int, short_float


def read_scalars(file: GGUFFile, name: str, *, num_layers: int, num_heads: int, head_dim: int) -> Scalars:
    """Read a family's multipliers and bounds.

    Absent ones, and multipliers stated as 0, keep their defaults; a bound of 0 is none.

    Args:
        file: the open model.
        name: its architecture, the prefix of its keys.
        num_layers: of the model; some scalars are not stated and follow from this and the next two.
        num_heads: query heads of a layer.
        head_dim: channels of a head.

    Raises:
        ConfigError: if one is not a number above 0.
    """
    match name:
        case "granite":
            return _granite(file)
        case "gemma2" | "gemma3":
            return _gemma(file, name, num_layers=num_layers, num_heads=num_heads, head_dim=head_dim)
    return Scalars()


def _granite(file: GGUFFile) -> Scalars:
    # llama.cpp, src/models/granite.cpp: the logits are divided by what is called their scale.
    return Scalars(
        attention_scale=_scale(file, "granite.attention.scale"),
        embedding_scale=_scale(file, "granite.embedding_scale") or 1.0,
        residual_scale=_scale(file, "granite.residual_scale") or 1.0,
        logit_scale=1.0 / (_scale(file, "granite.logit_scale") or 1.0),
    )


def _gemma(file: GGUFFile, name: str, *, num_layers: int, num_heads: int, head_dim: int) -> Scalars:
    # llama.cpp, src/llama-model.cpp: the largest models, told by their layers, scale attention by the channels that a
    # head would have if heads shared the hidden size, the others by those that it has. Gemma 3 has no attention cap.
    hidden_size = positive_int(file, f"{name}.embedding_length")
    is_27b = num_layers == {"gemma2": 46, "gemma3": 62}[name]
    is_capped = name == "gemma2"
    return Scalars(
        attention_scale=(hidden_size // num_heads if is_27b else head_dim) ** -0.5,
        attention_soft_cap=_soft_cap(file, "gemma2.attn_logit_softcapping", 50.0) if is_capped else None,
        # Not rounded to 16 bits: see hugging_face/scalars.py.
        embedding_scale=math.sqrt(hidden_size),
        logit_soft_cap=_soft_cap(file, f"{name}.final_logit_softcapping", 30.0 if is_capped else None),
    )


def _soft_cap(file: GGUFFile, key: str, default: float | None) -> float | None:
    return _scale(file, key) if key in file.metadata else default


def _scale(file: GGUFFile, key: str) -> float | None:
    return short_float(positive_float(file, key)) if file.get_float(key) else None
