"""The few facts of a tokenizer that a model's configuration needs: its size, and its end-of-text token.

Only these are decoded, so that a process without tokenizer (the engine core, an executor) can know its bounds cheaply.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from pagewire.ipc.errors import ConfigError

from ..json_reader import read_json_object


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _TokenizerModel(msgspec.Struct):
    vocab: dict[str, int] | list[Any] = {}  # Any: Unigram pairs of text and score, only counted here


class _TokenizerFile(msgspec.Struct):
    model: _TokenizerModel
    added_tokens: list[_AddedToken] = []


class TokenizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a tokenizer.json and its tokenizer_config.json say.

    Attributes:
        size: one more than the highest id, added tokens included.
        eos_token_id: the id of tokenizer_config.json's eos_token, None if it names none.
    """

    size: int
    eos_token_id: int | None


def read_tokenizer_facts(directory: Path) -> TokenizerFacts | None:
    """Read the facts of a checkpoint directory; None if it has no tokenizer.json.

    Raises:
        ConfigError: if a file is there but can't be read.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_TokenizerFile)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not a tokenizer file: {error}") from error
    vocab = file.model.vocab
    highest = max(vocab.values(), default=-1) if isinstance(vocab, dict) else len(vocab) - 1
    highest = max(highest, max((token.id for token in file.added_tokens), default=-1))
    return TokenizerFacts(size=highest + 1, eos_token_id=_eos_token_id(directory, file))


def _eos_token_id(directory: Path, file: _TokenizerFile) -> int | None:
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return None
    token = read_json_object(path).data.get("eos_token")
    if isinstance(token, dict):  # an AddedToken written out
        token = token.get("content")
    if not isinstance(token, str):
        return None
    for added in file.added_tokens:
        if added.content == token:
            return added.id
    return file.model.vocab.get(token) if isinstance(file.model.vocab, dict) else None
