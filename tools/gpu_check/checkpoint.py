"""A checkpoint without weights: the shape's config.json, and a tokenizer that knows each of its ids.

Words of `pagewire bench serve` are one token each, as they are in the real model's vocabulary. The rest of the ids are
fillers: they are drawn and turned into text like others.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pagewire.checkpoint.model_config import ModelConfig
from pagewire.frontend.bench.dataset.synthetic import WORDS
from tools.tiny_model.tokenizer import BOS_TOKEN_ID, CHAT_TEMPLATE, EOS_TOKEN_ID, build_tokenizer

_SPACE = "Ġ"  # how a byte-level vocabulary spells a space
_NUM_TRAINED = 300  # bytes, special tokens and a few merges; the rest is words and fillers


def write_checkpoint(model: ModelConfig, directory: Path) -> Path:
    """Write config.json and the tokenizer's files, and return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / "config.json", _config(model))
    _write(directory / "tokenizer.json", _tokenizer(model.vocab_size))
    _write(directory / "tokenizer_config.json", {"chat_template": CHAT_TEMPLATE, "add_bos_token": False})
    return directory


def _config(model: ModelConfig) -> dict[str, Any]:  # Any: JSON
    scaling = model.rope_scaling
    return {
        "architectures": [model.architecture],
        "model_type": "llama",
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": model.hidden_act,
        "max_position_embeddings": model.max_position,
        "rms_norm_eps": model.rms_norm_eps,
        "rope_theta": model.rope_theta,
        "rope_scaling": None
        if scaling is None
        else {
            "rope_type": scaling.kind,
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.original_max_position,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
        },
        "tie_word_embeddings": model.tie_word_embeddings,
        "bos_token_id": BOS_TOKEN_ID,
        "eos_token_id": EOS_TOKEN_ID,
        "torch_dtype": model.dtype,
    }


def _tokenizer(vocab_size: int) -> dict[str, Any]:  # Any: JSON
    content: dict[str, Any] = json.loads(build_tokenizer("llama", _NUM_TRAINED).to_str())
    vocabulary: dict[str, int] = content["model"]["vocab"]
    for word in WORDS:
        for spelling in (_SPACE + word, word):
            vocabulary.setdefault(spelling, len(vocabulary))
    assert len(vocabulary) <= vocab_size, "the shape has too few ids for the words"
    fillers = (f"filler{number}" for number in range(vocab_size))
    while len(vocabulary) < vocab_size:
        vocabulary.setdefault(next(fillers), len(vocabulary))
    content["model"]["ignore_merges"] = True  # a word of the vocabulary is its token, without merges that lead to it
    return content


def _write(path: Path, content: dict[str, Any]) -> None:  # Any: JSON
    path.write_text(json.dumps(content), encoding="utf-8")
