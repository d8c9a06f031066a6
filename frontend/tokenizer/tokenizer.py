"""The model's vocabulary: text -> token ids -> text, and what a request needs to know about single tokens.

Built on the `tokenizers` library alone: transformers and torch would cost the frontend seconds and hundreds of
megabytes. `pagewire.checkpoint.tokenizer` reads the model's files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import tokenizers

from pagewire.checkpoint.tokenizer.facts import TokenizerFacts
from pagewire.checkpoint.tokenizer.load import count_ids, read_tokenizer
from pagewire.checkpoint.tokenizer.pieces import PieceReader, find_pieces
from pagewire.ipc.errors import InvalidRequest

# A text of this length encodes in about the time that handing it to a thread and back takes (0.2 to 0.3 ms).
_MAX_INLINE_CHARACTERS = 512
_NUM_THREADS = 2
# A head has clearly more tokens than the whole text may have at so many times as many: cutting a text off in the middle
# of a word makes a few more tokens of it than it has there, and never as many as this.
_CLEARLY = 1.125
_HEAD_CHARACTERS_A_TOKEN = 8  # texts have 2 to 5; runs of spaces, of which vocabularies have long tokens, have more

T = TypeVar("T")


class Tokenizer:
    """One model's tokenizer. Immutable after construction, and safe to use from several threads.

    Args:
        backend: the vocabulary; truncation and padding, which some files switch on, are switched off.
        facts: what the checkpoint states besides.

    Attributes:
        vocab_size: one more than the largest token id.
        special_token_ids: control tokens, which `skip_special_tokens` leaves out of a text.
        bos_token, eos_token: their spelling; None if the vocabulary has none. bos_token_id, eos_token_id: their ids.
        special_tokens: role -> token, for chat templates.
        chat_template: the model's own template, None if it has none. chat_templates: all of them by name.
        pieces: each token's bytes; None for decoders whose tokens have no bytes of their own.
    """

    def __init__(self, backend: tokenizers.Tokenizer, facts: TokenizerFacts) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.vocab_size = count_ids(backend)
        added_tokens = backend.get_added_tokens_decoder()
        self._added_token_ids = frozenset(added_tokens)
        self.special_token_ids = frozenset(token_id for token_id, token in added_tokens.items() if token.special)
        self.special_tokens: Mapping[str, str] = facts.special_tokens
        self.bos_token = facts.special_tokens.get("bos_token")
        self.eos_token = facts.special_tokens.get("eos_token")
        self.bos_token_id = self.id_of(self.bos_token)
        self.eos_token_id = self.id_of(self.eos_token)
        self.chat_templates: Mapping[str, str] = facts.chat_templates
        self.chat_template = facts.chat_templates.get("default")
        self.pieces = find_pieces(backend, self.special_token_ids, strips_after_special=facts.strips_after_special)
        self._threads = ThreadPoolExecutor(max_workers=_NUM_THREADS, thread_name_prefix="tokenizer")

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of `text`; the spelling of a special token in it becomes that token.

        Args:
            text: any text of Unicode characters.
            add_special_tokens: put the begin-of-text token in front, if the model wants one (and the like).

        Raises:
            InvalidRequest: if `text` has a lone surrogate, which is no character and has no bytes.
        """
        _check_is_unicode(text)
        # Only calls for many texts leave the interpreter free meanwhile: for one of 8 MiB it was held for 44 s.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding.ids

    async def count_beyond(self, text: str, limit: int) -> int | None:
        """Return a number of tokens that `text` has for certain, if it is far more than `limit`; else None.

        A text that can't fit shows it early, so ever longer heads of it are encoded, each twice the last: a text of
        megabytes takes no more time and memory than one that nearly fits. None says nothing about the text.

        Raises:
            InvalidRequest: as `encode`.
        """
        num_characters = _HEAD_CHARACTERS_A_TOKEN * limit
        while 2 * num_characters <= len(text):
            head = await self.encode_async(text[:num_characters], add_special_tokens=False)
            if len(head) > _CLEARLY * limit:
                return len(head)
            num_characters *= 2
        return None

    async def encode_async(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """`encode` beside the event loop: a long text takes a thread, and the library leaves the interpreter free."""
        if len(text) <= _MAX_INLINE_CHARACTERS:
            return self.encode(text, add_special_tokens=add_special_tokens)
        return await self.in_thread(lambda: self.encode(text, add_special_tokens=add_special_tokens))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Return what `work` with this tokenizer returns, done beside the event loop.

        Whoever is cancelled waits no longer; work that has begun is finished all the same.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """Return the text of `token_ids`.

        Args:
            token_ids: ids of this vocabulary. Ids that no token has (an embedding may have more rows) add nothing.
            skip_special_tokens: leave control tokens out.
            spaces_between_special_tokens: False: a decoder that joins tokens by spaces puts none between two added
                tokens. Byte-level and SentencePiece decoders never put any, so it makes no difference to them.

        Raises:
            InvalidRequest: if an id is negative or not below `vocab_size`.
        """
        self._check_ids(token_ids)
        if self.pieces is not None:
            reader = PieceReader(self.pieces, skip_special_tokens=skip_special_tokens)
            return reader.read(token_ids).decode("utf-8", "replace")
        runs = [list(token_ids)] if spaces_between_special_tokens else self._split_between_added(token_ids)
        return "".join(self._backend.decode(run, skip_special_tokens=skip_special_tokens) for run in runs)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes that a token adds to a text; a character may take several tokens.

        Raises:
            InvalidRequest: as `decode`.
        """
        self._check_ids((token_id,))
        if self.pieces is not None:
            return self.pieces.table[token_id]
        return self._backend.decode([token_id], skip_special_tokens=False).encode()

    def token_text(self, token_id: int) -> str:
        """Return a token's text within a text, its leading space included; U+FFFD for parts of a character.

        Raises:
            InvalidRequest: as `decode`.
        """
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_spelling(self, token_id: int) -> str:
        """Return a token as the vocabulary spells it ("Ġthe"); empty for an id that no token has.

        Raises:
            InvalidRequest: as `decode`.
        """
        self._check_ids((token_id,))
        return self._backend.id_to_token(token_id) or ""

    def id_of(self, token: str | None) -> int | None:
        """Return the id of the token that the vocabulary spells so, None if there is none."""
        return None if token is None else self._backend.token_to_id(token)

    def close(self) -> None:
        """End the threads of `encode_async` and `in_thread`."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check_ids(self, token_ids: Sequence[int]) -> None:
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < self.vocab_size):
            wrong = next(token_id for token_id in token_ids if not 0 <= token_id < self.vocab_size)
            raise InvalidRequest(f"token id {wrong} is not in the vocabulary: ids are 0 to {self.vocab_size - 1}")

    def _split_between_added(self, token_ids: Sequence[int]) -> list[list[int]]:
        runs: list[list[int]] = [[]]
        for token_id in token_ids:
            is_added = token_id in self._added_token_ids
            if is_added and runs[-1] and runs[-1][-1] in self._added_token_ids:
                runs.append([])
            runs[-1].append(token_id)
        return runs


def load_tokenizer(model_path: Path, *, cache_dir: Path | None = None) -> Tokenizer:
    """Load the tokenizer of a local model.

    Args:
        model_path: a Hugging Face directory or a GGUF file (of a split model, any shard).
        cache_dir: where a converted tokenizer.model is kept; None: beside the packaged model.

    Raises:
        ConfigError: if there is none, or it can't be used. The message names the file.
    """
    return Tokenizer(*read_tokenizer(model_path, cache_dir=cache_dir))


def _check_is_unicode(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the text has a lone surrogate (U+{ord(text[error.start]):04X} at character {error.start}), which is no "
            "Unicode character; send well-formed UTF-8"
        ) from None
