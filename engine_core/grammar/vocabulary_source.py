"""Where a vocabulary comes from, said without loading it."""

from __future__ import annotations

import msgspec

from pagewire.checkpoint.model_config import ModelConfig


class VocabularySource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a vocabulary comes from.

    Attributes:
        model_path: a Hugging Face directory or a GGUF file.
        vocab_size: ids that can be drawn.
        eos_token_ids: all end tokens of the model.
    """

    model_path: str
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, model: ModelConfig, model_path: str) -> VocabularySource:
        """Return where a model's vocabulary comes from."""
        return cls(model_path=model_path, vocab_size=model.tokenizer_size, eos_token_ids=model.eos_token_ids)
