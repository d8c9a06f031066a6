"""A model's vocabulary as the grammar library wants it: the bytes of every token, and which of them end a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import llguidance
import tokenizers

from pagewire.checkpoint.tokenizer.load import read_tokenizer
from pagewire.checkpoint.tokenizer.pieces import find_pieces
from pagewire.ipc.errors import InvalidRequest, PagewireError

from .vocabulary_source import VocabularySource

# How the library tells tokens that stand for no text from others of the same spelling.
_SPECIAL_MARK = b"\xff"
_NO_TEXT_END = _SPECIAL_MARK + b"<end>"


def load_vocabulary(source: VocabularySource) -> llguidance.LLTokenizer:
    """Read a vocabulary. It takes tenths of a second, half of which hold the interpreter.

    Raises:
        InvalidRequest: the model's tokens don't stand for bytes, or its tokenizer can't be read.
    """
    try:
        backend, _ = read_tokenizer(Path(source.model_path))
    except PagewireError as exc:
        raise _unusable(exc.message) from exc
    special_ids = {token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special}
    pieces = find_pieces(backend, special_ids)
    if pieces is None:
        raise _unusable("its tokens don't stand for bytes, whatever their neighbours are")
    table = [
        _SPECIAL_MARK + pieces.table[token_id] if token_id in special_ids else pieces.table[token_id]
        for token_id in range(source.vocab_size)
    ]
    return make_vocabulary(table, sorted(special_ids), source.eos_token_ids, backend)


def make_vocabulary(
    table: list[bytes],
    special_ids: Sequence[int],
    eos_token_ids: Sequence[int],
    backend: tokenizers.Tokenizer | None = None,
) -> llguidance.LLTokenizer:
    """Return a vocabulary of these tokens.

    Args:
        table: bytes of each token; those of special ones begin with 0xff.
        special_ids: tokens that stand for no text.
        eos_token_ids: those that end one. Without any, a text ends where nothing can follow, and by length.
        backend: says how text is cut into tokens; None: into the longest that fit.
    """
    eos = [token_id for token_id in eos_token_ids if token_id < len(table)]
    if not eos:  # the library asks for one: an id that nobody can draw
        table = [*table, _NO_TEXT_END]
        eos = [len(table) - 1]
    tokens = _Tokens(table, sorted({*special_ids, *eos}), eos[0], backend)
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(tokens), n_vocab=len(table), eos_token=eos)


class _Tokens:
    """What `llguidance.TokenizerWrapper` reads.

    Where a grammar leaves one way to go on, the library asks how the tokenizer would cut it, and allows no other token.
    """

    def __init__(
        self, tokens: list[bytes], special_token_ids: list[int], eos_token_id: int, backend: tokenizers.Tokenizer | None
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self._backend = backend
        self._id_of: dict[bytes, int] = {}
        self._max_bytes = 0

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        if self._backend is not None:
            ids: list[int] = self._backend.encode(data.decode("utf-8", "replace"), add_special_tokens=False).ids
            # Some tokenizers put a space in front, or take what looks like a special token for one.
            if b"".join(self.tokens[token_id] for token_id in ids) == data:
                return ids
        return self._cut_greedily(data)

    def _cut_greedily(self, data: bytes) -> list[int]:
        if not self._id_of:
            special_ids = set(self.special_token_ids)
            for token_id, piece in enumerate(self.tokens):
                if piece and token_id not in special_ids:
                    self._id_of.setdefault(piece, token_id)
            self._max_bytes = max(map(len, self._id_of), default=0)
        ids: list[int] = []
        start = 0
        while start < len(data):
            for end in range(min(start + self._max_bytes, len(data)), start, -1):
                found = self._id_of.get(data[start:end])
                if found is not None:
                    ids.append(found)
                    start = end
                    break
            else:
                break  # no token begins so: the library goes on by bytes
        return ids


def _unusable(why: str) -> InvalidRequest:
    return InvalidRequest(f"This model's vocabulary can't be constrained: {why}.", param="structured_outputs")
