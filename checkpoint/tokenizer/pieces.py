"""What each token is in bytes, and how a sequence of them becomes text.

Nearly every vocabulary is of one of two kinds, and in both a token stands for bytes whatever its neighbours are:

- byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM): a token is spelled in an alphabet of 256 printable characters;
- SentencePiece (Llama 2, Mistral, Gemma): `▁` is a space, `<0xE2>` one byte, and one space at the start of the text,
  which encoding put there, is taken off again.

Text is then the bytes of all tokens, read as UTF-8. That makes decoding exact and incremental at the cost of one table
lookup a token. Other decoders (WordPiece, Metaspace, ...) are left to the library that defines them.

Where bytes are no valid UTF-8, they become U+FFFD as Unicode recommends (one per maximal ill-formed part). The library
does the same for byte-level vocabularies; for SentencePiece it instead turns a whole run of byte tokens into U+FFFD
once any byte of it is wrong, which would take back characters that were already streamed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import tokenizers

REPLACEMENT_MARK = "▁"
"""How SentencePiece spells a space (U+2581)."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# SentencePiece's decoder as Hugging Face writes it down; the last step is there if encoding puts a space in front.
_SPACES = {"type": "Replace", "pattern": {"String": REPLACEMENT_MARK}, "content": " "}
_SENTENCEPIECE_STEPS = [_SPACES, {"type": "ByteFallback"}, {"type": "Fuse"}]
_STRIP_STEP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


class TokenPieces:
    """The bytes of every token of one vocabulary, looked up on first use.

    Attributes:
        table: token id -> bytes. Ids without a token have none (an embedding has padding rows).
        special_ids: ids of control tokens, which `skip_special_tokens` leaves out.
        strips_leading_space: the first space of a text belongs to the encoding, not to the text.
        strips_after_special: so does the first space after each special token.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        spell: Callable[[str], bytes],
        special_ids: Collection[int],
        *,
        strips_leading_space: bool = False,
        strips_after_special: bool = False,
    ) -> None:
        self.table: dict[int, bytes] = _PieceTable(backend, spell)
        self.special_ids = frozenset(special_ids)
        self.strips_leading_space = strips_leading_space
        self.strips_after_special = strips_after_special


class PieceReader:
    """Turns token ids into bytes, in order, wherever the sequence is cut."""

    def __init__(self, pieces: TokenPieces, *, skip_special_tokens: bool) -> None:
        self._table = pieces.table
        self._skipped: frozenset[int] = pieces.special_ids if skip_special_tokens else frozenset()
        self._shown_specials = pieces.special_ids - self._skipped if pieces.strips_after_special else frozenset()
        self._strip_next = pieces.strips_leading_space

    def read(self, token_ids: Iterable[int]) -> bytes:
        """Return the bytes that `token_ids` add to the text."""
        chunks: list[bytes] = []
        for token_id in token_ids:
            if token_id in self._skipped:
                continue
            piece = self._table[token_id]
            if self._strip_next and piece:
                piece = piece.removeprefix(b" ")
                self._strip_next = False
            if token_id in self._shown_specials:
                self._strip_next = True
            chunks.append(piece)
        return b"".join(chunks)

    def skip_past(self, token_ids: Sequence[int]) -> bytes:
        """Continue after `token_ids` as if they had been read, without reading all of them.

        Returns:
            The last bytes of their text: at least three where there are as many, enough to see a character that is
            not yet complete.
        """
        tail: list[bytes] = []
        num_bytes = 0
        for token_id in reversed(token_ids):
            piece = b"" if token_id in self._skipped else self._table[token_id]
            if not piece:
                continue
            if not tail:
                self._strip_next = token_id in self._shown_specials
            tail.append(piece)
            num_bytes += len(piece)
            if num_bytes >= 3:
                break
        return b"".join(reversed(tail))


class _PieceTable(dict[int, bytes]):
    """A dict, so that the hot path is one lookup; `__missing__` spells a token when it's first met."""

    def __init__(self, backend: tokenizers.Tokenizer, spell: Callable[[str], bytes]) -> None:
        super().__init__()
        self._backend = backend
        self._spell = spell

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        piece = b"" if token is None else self._spell(token)
        self[token_id] = piece
        return piece


def find_pieces(
    backend: tokenizers.Tokenizer, special_ids: Collection[int], *, strips_after_special: bool = False
) -> TokenPieces | None:
    """Return the vocabulary's pieces, or None if its decoder is of neither kind."""
    if backend.decoder is None:
        return None
    # Any: the decoder's description is JSON of the library's own making.
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return TokenPieces(backend, _spell_byte_level, special_ids)
    if steps[:3] == _SENTENCEPIECE_STEPS and steps[3:] in ([], [_STRIP_STEP]):
        return TokenPieces(
            backend,
            _spell_sentencepiece,
            special_ids,
            strips_leading_space=bool(steps[3:]),
            strips_after_special=strips_after_special,
        )
    return None


def _byte_of_character() -> dict[str, int]:
    # GPT-2's alphabet: printable Latin-1 characters stand for themselves, the other bytes for U+0100 and up, in order.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_of_character()


def _spell_byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:  # an added token, written as itself
        return token.encode()


def _spell_sentencepiece(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    if match is not None:
        return bytes([int(match[1], 16)])
    return token.replace(REPLACEMENT_MARK, " ").encode()
