"""The numbers by which some families differ from Llama, as a GGUF file states them."""

from __future__ import annotations

from ..gguf_file import GGUFFile
from ..hugging_face.scalars import Scalars
from .numbers import positive_float, short_float


def read_scalars(file: GGUFFile, name: str) -> Scalars:
    """Read a family's multipliers and bounds. Absent ones, and those stated as 0, keep their defaults.

    Args:
        file: the open model.
        name: its architecture, the prefix of its keys.

    Raises:
        ConfigError: if one is not a number above 0.
    """
    match name:
        case "granite":
            return _granite(file)
    return Scalars()


def _granite(file: GGUFFile) -> Scalars:
    # llama.cpp, src/models/granite.cpp: the logits are divided by what is called their scale.
    return Scalars(
        attention_scale=_scale(file, "granite.attention.scale"),
        embedding_scale=_scale(file, "granite.embedding_scale") or 1.0,
        residual_scale=_scale(file, "granite.residual_scale") or 1.0,
        logit_scale=1.0 / (_scale(file, "granite.logit_scale") or 1.0),
    )


def _scale(file: GGUFFile, key: str) -> float | None:
    return short_float(positive_float(file, key)) if file.get_float(key) else None
