"""Logprobs in the shapes of the two endpoints. Entries stay keyed by token id until they are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from pagewire.ipc.outputs import TokenLogprobs

from ..text.detokenizer import Detokenizer
from ..tokenizer.tokenizer import Tokenizer
from .bodies.responses import (
    ChatLogprobs,
    ChatTokenLogprob,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TopLogprob,
)

# JSON has no infinity; clients know this number as "impossible".
LOWEST_LOGPROB = -9999.0


class ChatLogprobsWriter:
    """Writes the chat endpoint's logprobs.

    Args:
        tokenizer: gives each token's exact bytes: those of one answer join to its text.
        num_top: alternatives per position.
        shows_special: control tokens are part of the text (skip_special_tokens is false), so they have bytes.
        as_ids: name tokens by their ids ("token_id:7") instead of their texts.
    """

    def __init__(self, tokenizer: Tokenizer, *, num_top: int, shows_special: bool, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids
        self._num_top = num_top
        self._hidden = frozenset() if shows_special else tokenizer.special_token_ids

    def write(self, entries: Sequence[TokenLogprobs]) -> ChatLogprobs:
        """Return the logprobs of consecutive tokens."""
        return ChatLogprobs(content=[self._write_one(entry) for entry in entries])

    def _write_one(self, entry: TokenLogprobs) -> ChatTokenLogprob:
        token, token_bytes = self._text_and_bytes(entry.token_id)
        top: list[TopLogprob] = []
        num_top = self._num_top if self._num_top >= 0 else len(entry.top_token_ids)
        for token_id, logprob in zip(entry.top_token_ids[:num_top], entry.top_logprobs, strict=False):
            text, raw = self._text_and_bytes(token_id)
            top.append(TopLogprob(token=text, logprob=max(logprob, LOWEST_LOGPROB), bytes=raw))
        return ChatTokenLogprob(
            token=token, logprob=max(entry.logprob, LOWEST_LOGPROB), bytes=token_bytes, top_logprobs=top
        )

    def _text_and_bytes(self, token_id: int) -> tuple[str, list[int] | None]:
        raw = _bytes_of(self._tokenizer, token_id)
        text = _id_name(token_id) if self._as_ids else raw.decode("utf-8", "replace")
        return text, None if token_id in self._hidden else list(raw)


class CompletionLogprobsWriter:
    """Writes the completions endpoint's logprobs for one choice, in order: its tokens join to its text.

    A token that ends within a character has the text "", the one that completes it has the character.

    Args:
        tokenizer: the vocabulary.
        prompt_token_ids: what the choice continues.
        num_top: alternatives per position.
        skip_special_tokens: as in the choice's text.
        text_offset: characters before the first token: the echoed prompt's length, 0 without echo.
        as_ids: name alternatives by their ids; the tokens themselves are named by `name_by_ids`, once they are cut.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        *,
        num_top: int,
        skip_special_tokens: bool,
        text_offset: int = 0,
        as_ids: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids
        self._num_top = num_top
        self._detokenizer = Detokenizer(tokenizer, prompt_token_ids, skip_special_tokens=skip_special_tokens)
        self.text_offset = text_offset

    def write(self, entries: Sequence[TokenLogprobs], *, is_last: bool) -> CompletionLogprobs:
        """Return the logprobs of the next tokens.

        Args:
            entries: one a token.
            is_last: no more follow; what the detokenizer holds back goes to the last token.
        """
        offsets: list[int] = []
        texts: list[str] = []
        for entry in entries:
            offsets.append(self.text_offset + self._detokenizer.text_length)
            texts.append(self._detokenizer.push((entry.token_id,)))
        if is_last:
            rest = self._detokenizer.finish()
            if texts:
                texts[-1] += rest
        return CompletionLogprobs(
            text_offset=offsets,
            token_logprobs=[max(entry.logprob, LOWEST_LOGPROB) for entry in entries],
            tokens=texts,
            top_logprobs=[
                top_logprobs(self._tokenizer, entry, self._num_top, as_ids=self._as_ids) for entry in entries
            ],
        )


def name_by_ids(logprobs: CompletionLogprobs, token_ids: Iterable[int]) -> CompletionLogprobs:
    """Return the logprobs with their tokens named by ids instead of texts."""
    return msgspec.structs.replace(logprobs, tokens=[_id_name(token_id) for token_id in token_ids])


def echo_logprobs(
    tokenizer: Tokenizer,
    token_texts: Sequence[str],
    entries: Sequence[TokenLogprobs],
    num_top: int,
    *,
    as_ids: bool = False,
) -> CompletionLogprobs:
    """Return the logprobs of an echoed prompt; its first token, which nothing precedes, has none.

    Args:
        tokenizer: the vocabulary.
        token_texts: see `prompt_token_texts`.
        entries: one for each prompt token but the first.
        num_top: alternatives per position.
        as_ids: name alternatives by their ids.
    """
    offsets: list[int] = []
    offset = 0
    for text in token_texts:
        offsets.append(offset)
        offset += len(text)
    return CompletionLogprobs(
        text_offset=offsets,
        token_logprobs=[None, *(max(entry.logprob, LOWEST_LOGPROB) for entry in entries)],
        tokens=list(token_texts),
        top_logprobs=[None, *(top_logprobs(tokenizer, entry, num_top, as_ids=as_ids) for entry in entries)],
    )


def join_logprobs(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """Return the logprobs of two consecutive stretches as one."""
    return CompletionLogprobs(
        text_offset=first.text_offset + second.text_offset,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        tokens=first.tokens + second.tokens,
        top_logprobs=first.top_logprobs + second.top_logprobs,
    )


def cut_tokens(logprobs: CompletionLogprobs, text_end: int) -> CompletionLogprobs:
    """Return the logprobs with token texts that reach beyond `text_end`, where a stop string cut the text, cut too."""
    tokens = [
        token[: max(text_end - offset, 0)] for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True)
    ]
    return CompletionLogprobs(
        text_offset=[min(offset, text_end) for offset in logprobs.text_offset],
        token_logprobs=logprobs.token_logprobs,
        tokens=tokens,
        top_logprobs=logprobs.top_logprobs,
    )


def prompt_token_texts(tokenizer: Tokenizer, prompt_token_ids: Sequence[int]) -> list[str]:
    """Return the text of each prompt token; together they are the prompt, without a begin-of-text token in front."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
    texts = [detokenizer.push((token_id,)) for token_id in prompt_token_ids]
    if prompt_token_ids and prompt_token_ids[0] == tokenizer.bos_token_id:
        texts[0] = ""
    return texts


def top_logprobs(tokenizer: Tokenizer, entry: TokenLogprobs, num_top: int, *, as_ids: bool = False) -> dict[str, float]:
    """Return the alternatives of a position, best first, and the token itself, keyed as OpenAI keys them, or by ids.

    Parts of a character are keyed by their bytes ("bytes:\\xe2\\x80"): as text they would all be U+FFFD, one key.
    """

    def key(token_id: int) -> str:
        return _id_name(token_id) if as_ids else _token_key(tokenizer, token_id)

    top: dict[str, float] = {}
    num_top = num_top if num_top >= 0 else len(entry.top_token_ids)
    for token_id, logprob in zip(entry.top_token_ids[:num_top], entry.top_logprobs, strict=False):
        top.setdefault(key(token_id), max(logprob, LOWEST_LOGPROB))
    top.setdefault(key(entry.token_id), max(entry.logprob, LOWEST_LOGPROB))
    return top


def write_prompt_logprobs(
    tokenizer: Tokenizer, prompt_token_ids: Sequence[int], entries: Sequence[TokenLogprobs]
) -> PromptLogprobs:
    """Return vLLM's `prompt_logprobs`: for each prompt token a table by token id, null for the first."""
    if not prompt_token_ids:
        return []
    return [None, *(_prompt_entry(tokenizer, entry) for entry in entries)]


def _prompt_entry(tokenizer: Tokenizer, entry: TokenLogprobs) -> dict[str, PromptLogprob]:
    def describe(token_id: int, logprob: float, rank: int) -> PromptLogprob:
        return PromptLogprob(
            logprob=max(logprob, LOWEST_LOGPROB),
            rank=rank,
            decoded_token=_bytes_of(tokenizer, token_id).decode("utf-8", "replace"),
        )

    described = {str(entry.token_id): describe(entry.token_id, entry.logprob, entry.rank)}
    for rank, (token_id, logprob) in enumerate(zip(entry.top_token_ids, entry.top_logprobs, strict=False), start=1):
        described.setdefault(str(token_id), describe(token_id, logprob, rank))
    return described


def _id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


def _token_key(tokenizer: Tokenizer, token_id: int) -> str:
    raw = _bytes_of(tokenizer, token_id)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _bytes_of(tokenizer: Tokenizer, token_id: int) -> bytes:
    # Models may have more rows of logits than tokens; such an id can be listed as an alternative, without a text.
    return tokenizer.token_bytes(token_id) if token_id < tokenizer.vocab_size else b""
