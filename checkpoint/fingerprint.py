"""Whether two hosts have the same model: compared before they compute parts of it."""

from __future__ import annotations

import hashlib

import msgspec

from .model_config import ModelConfig

_DIGEST_BYTES = 16


def fingerprint(model: ModelConfig) -> str:
    """Return a digest of what a model is, wherever its files lie: shapes, types, quantization, special tokens.

    The weights themselves are not read: it tells two models apart, and not two trainings of one model.
    """
    without_place = msgspec.structs.replace(model, model_path="")
    return hashlib.blake2b(msgspec.json.encode(without_place, order="sorted"), digest_size=_DIGEST_BYTES).hexdigest()
