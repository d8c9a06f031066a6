"""Token ids -> text, piece by piece: what is emitted is a pure function of the ids, however they were cut.

A character may be spread over several tokens. `push` returns only whole characters; the bytes of one that has begun
wait for the rest, or for `finish`, which emits U+FFFD in their place.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from pagewire.checkpoint.tokenizer.pieces import PieceReader, TokenPieces

from ..tokenizer.tokenizer import Tokenizer

_WINDOW_PROMPT_TOKENS = 6
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Decodes one request's output as it comes.

    For any cut of the ids, the texts of all `push` and of `finish` join to `Tokenizer.decode(ids)`. After a prompt
    they join to what the ids add to it: a SentencePiece text keeps its leading space, and a character that the prompt
    began is completed.

    Args:
        tokenizer: the vocabulary.
        prompt_token_ids: what the output continues; empty for a text that stands alone.
        skip_special_tokens: leave control tokens out of the text.
        spaces_between_special_tokens: as in `Tokenizer.decode`.

    Attributes:
        text_length: characters returned so far. Read before pushing a token, it is that token's text offset.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self.text_length = 0
        self._finished = False
        self._stream: _Stream
        if tokenizer.pieces is not None:
            self._stream = _PieceStream(tokenizer.pieces, prompt_token_ids, skip_special_tokens=skip_special_tokens)
        else:
            self._stream = _WindowStream(
                tokenizer,
                prompt_token_ids,
                skip_special_tokens=skip_special_tokens,
                spaces_between_special_tokens=spaces_between_special_tokens,
            )

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that `token_ids` decide; often one token's, empty within a character."""
        assert not self._finished
        text = self._stream.push(token_ids)
        self.text_length += len(text)
        return text

    def finish(self) -> str:
        """Return what was held back. Call it once, on every way to finish but a stop string's (its text is cut)."""
        assert not self._finished
        self._finished = True
        text = self._stream.finish()
        self.text_length += len(text)
        return text


class _Stream(Protocol):
    def push(self, token_ids: Sequence[int]) -> str: ...

    def finish(self) -> str: ...


class _PieceStream:
    """For vocabularies whose tokens are bytes: an incremental UTF-8 decoder over them."""

    def __init__(self, pieces: TokenPieces, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool) -> None:
        self._reader = PieceReader(pieces, skip_special_tokens=skip_special_tokens)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._utf8.decode(self._reader.skip_past(prompt_token_ids))
        # Bytes of a character that the prompt began are in the decoder. They're only of use to an output that goes on
        # with them: a lone half of the prompt is no part of the output.
        self._begun_by_prompt = bool(self._utf8.getstate()[0])

    def push(self, token_ids: Sequence[int]) -> str:
        data = self._reader.read(token_ids)
        if self._begun_by_prompt and data:
            self._begun_by_prompt = False
            if not _is_continuation(data[0]):
                self._utf8.reset()
        return self._utf8.decode(data)

    def finish(self) -> str:
        return "" if self._begun_by_prompt else self._utf8.decode(b"", final=True)


class _WindowStream:
    """For all other decoders: decode a window of the last tokens with and without the new ones; the text grows by the
    difference. Exact where a token's text depends on the token before it at most, which holds for the decoders known.
    """  # fmt: skip

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._spaces_between_special_tokens = spaces_between_special_tokens
        self._window = list(prompt_token_ids[-_WINDOW_PROMPT_TOKENS:])
        self._num_emitted = len(self._window)  # window[:num_emitted] is in the text already

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def finish(self) -> str:
        return self._growth()

    def _push_one(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._growth()
        if not text or text.endswith(_REPLACEMENT):
            return ""
        self._window = self._window[self._num_emitted :]
        self._num_emitted = len(self._window)
        return text

    def _growth(self) -> str:
        before = self._decode(self._window[: self._num_emitted])
        return self._decode(self._window)[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(
            token_ids,
            skip_special_tokens=self._skip_special_tokens,
            spaces_between_special_tokens=self._spaces_between_special_tokens,
        )


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80
