"""Which models can guess for which: both must mean the same by a token id, and reach as far."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pagewire.ipc.errors import ConfigError

from .gguf_file import GGUFFile
from .model_config import ModelConfig


class _Spelled(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]] = {}


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _TokenizerFile(msgspec.Struct):
    model: _Spelled = msgspec.field(default_factory=_Spelled)
    added_tokens: list[_AddedToken] = []


def check_draft_model(draft: ModelConfig, target: ModelConfig, max_model_len: int) -> None:
    """Refuse a draft model that can't guess for the served one.

    Args:
        draft: what is to guess.
        target: what is served.
        max_model_len: the longest context that is served.

    Raises:
        ConfigError: naming both models and what differs.
    """
    sizes = [min(model.tokenizer_size, model.vocab_size) for model in (draft, target)]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"--speculative-model {draft.model_path} has another vocabulary, of {sizes[0]} tokens, than "
            f"{target.model_path} with {sizes[1]}; give one with the same tokens."
        )
    token_id = _first_difference(draft, target)
    if token_id is not None:
        raise ConfigError(
            f"--speculative-model {draft.model_path} has another vocabulary than {target.model_path}: token id "
            f"{token_id} is another token; give one with the same tokens."
        )
    if draft.max_position < max_model_len:
        raise ConfigError(
            f"--speculative-model {draft.model_path} was made for contexts of {draft.max_position} tokens, and "
            f"{target.model_path} is served with {max_model_len}; give --max-model-len {draft.max_position}, "
            "or another draft model."
        )


def _first_difference(draft: ModelConfig, target: ModelConfig) -> int | None:
    """Return the first id that two vocabularies of one size spell in two ways, None if there is none.

    Files of two formats spell some tokens in ways of their own: they are compared by their sizes alone.
    """
    if draft.file_format != target.file_format:
        return None
    ours, theirs = (_read_tokens(Path(model.model_path)) for model in (draft, target))
    if ours is None or theirs is None or ours == theirs:
        return None
    most = min(target.tokenizer_size, target.vocab_size)
    return next((token_id for token_id in range(most) if ours.get(token_id) != theirs.get(token_id)), None)


def _read_tokens(path: Path) -> dict[int, str] | None:
    """Return the tokens of a tokenizer by id; None where it can't be read without building it."""
    if path.is_file():
        with GGUFFile(path) as file:
            tokens = file.get_strings("tokenizer.ggml.tokens")
        return None if tokens is None else dict(enumerate(tokens))
    tokenizer = path / "tokenizer.json"
    if not tokenizer.is_file():
        return None
    try:
        read = msgspec.json.decode(tokenizer.read_bytes(), type=_TokenizerFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None  # what is wrong with it is said by whoever loads it
    vocab = read.model.vocab
    pairs = vocab.items() if isinstance(vocab, dict) else ((text, index) for index, (text, _) in enumerate(vocab))
    return {token_id: text for text, token_id in pairs} | {token.id: token.content for token in read.added_tokens}
