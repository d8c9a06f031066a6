"""Reads a local model's vocabulary, whatever its files are.

The frontend turns text into ids by it; the engine core asks it for the bytes of each token, when a grammar comes.
"""

from __future__ import annotations

from pathlib import Path

import tokenizers

from .directory import read_directory
from .facts import TokenizerFacts
from .gguf import read_gguf


def read_tokenizer(model_path: Path, *, cache_dir: Path | None = None) -> tuple[tokenizers.Tokenizer, TokenizerFacts]:
    """Read the vocabulary of a local model.

    Args:
        model_path: a Hugging Face directory or a GGUF file (of a split model, any shard).
        cache_dir: where a converted tokenizer.model is kept; None: beside the packaged model.

    Raises:
        ConfigError: if there is none, or it can't be used. The message names the file.
    """
    if model_path.is_dir():
        return read_directory(model_path, cache_dir=cache_dir)
    return read_gguf(model_path)


def count_ids(backend: tokenizers.Tokenizer) -> int:
    """Return one more than the largest token id."""
    num_tokens = backend.get_vocab_size(with_added_tokens=True)
    # Ids are dense in nearly every vocabulary; listing it (70 ms of 50,000 tokens) is for those with holes.
    if num_tokens and backend.id_to_token(num_tokens - 1) is not None and backend.id_to_token(num_tokens) is None:
        return num_tokens
    return max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
