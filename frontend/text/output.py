"""Tokens of one answer -> its text: detokenize, watch for stop strings, decide where and why the text ends.

The frontend is the authority on text. A pure function of the tokens, however the deltas cut them: streams, whole
answers and offline runs all read the same chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pagewire.ipc.outputs import FinishReason, TokenDelta, TokenLogprobs
from pagewire.ipc.sampling_params import SamplingParams

from ..tokenizer.tokenizer import Tokenizer
from .detokenizer import Detokenizer
from .stop_strings import StopStrings


class TextChunk(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one delta adds to one answer.

    Attributes:
        index: which child of the request.
        text: text that is now decided; may be empty while a character or a possible stop string is open.
        token_ids: the new tokens, a stop token among them; none beyond the one that completed a stop string.
        logprobs: one entry a token, or empty.
        finish_reason: stop, length or abort in the child's last chunk, else None.
        stop_reason: the stop string or stop token id that ended it; None for the model's own end token.
        num_output_tokens: tokens of this child so far.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    finish_reason: str | None
    stop_reason: int | str | None
    num_output_tokens: int


class TextOutput:
    """The text of one child as its tokens come.

    Args:
        tokenizer: the model's.
        prompt_token_ids: what the answer continues.
        params: the request's text options.
        index: which child.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams, *, index: int
    ) -> None:
        self._index = index
        self._min_tokens = params.min_tokens
        self._shows_stop_token = params.include_stop_str_in_output
        self._num_output_tokens = 0
        self._detokenizer: Detokenizer | None = None
        self._stops: StopStrings | None = None
        if params.detokenize:
            self._detokenizer = Detokenizer(
                tokenizer,
                prompt_token_ids,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
            )
        if params.stop_strings:
            self._stops = StopStrings(params.stop_strings, include_in_output=params.include_stop_str_in_output)

    def push(self, delta: TokenDelta) -> TextChunk:
        """Add a delta; after the chunk with a finish_reason there must be no other."""
        if delta.finish_reason is None and self._stops is None and self._detokenizer is not None:  # nearly always
            self._num_output_tokens += len(delta.token_ids)
            return TextChunk(
                index=self._index,
                text=self._detokenizer.push(delta.token_ids),
                token_ids=delta.token_ids,
                logprobs=delta.logprobs,
                finish_reason=None,
                stop_reason=None,
                num_output_tokens=self._num_output_tokens,
            )
        token_ids, logprobs = delta.token_ids, delta.logprobs
        finish_reason = None if delta.finish_reason is None else str(delta.finish_reason)
        stop_reason: int | str | None = delta.stop_reason
        is_stopped = delta.finish_reason is FinishReason.STOP and not delta.ends_in_text
        text, num_kept, matched = self._decode(token_ids, hides_last=is_stopped and not self._shows_stop_token)
        if matched is None and finish_reason is not None:
            tail, matched = self._finish()
            text += tail
        if matched is not None:
            token_ids, logprobs = token_ids[:num_kept], logprobs[:num_kept]
            finish_reason, stop_reason = str(FinishReason.STOP), matched
        self._num_output_tokens += len(token_ids)
        return TextChunk(
            index=self._index,
            text=text,
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            num_output_tokens=self._num_output_tokens,
        )

    def _decode(self, token_ids: Sequence[int], *, hides_last: bool) -> tuple[str, int, str | None]:
        """Return (text, tokens that it took, the stop string that was completed)."""
        num_tokens = len(token_ids)
        if self._detokenizer is None:
            return "", num_tokens, None
        shown = token_ids[:-1] if hides_last else token_ids
        if self._stops is None:
            return self._detokenizer.push(shown), num_tokens, None
        texts: list[str] = []
        for count, token_id in enumerate(shown, start=1):
            piece = self._detokenizer.push((token_id,))
            # Up to min_tokens, what looks like a stop string is ordinary text.
            can_stop = self._num_output_tokens + count > self._min_tokens
            text, matched = self._stops.push(piece, can_stop=can_stop)
            texts.append(text)
            if matched is not None:
                return "".join(texts), count, matched
        return "".join(texts), num_tokens, None

    def _finish(self) -> tuple[str, str | None]:
        """Return (text that was held back, the stop string that it completes)."""
        if self._detokenizer is None:
            return "", None
        tail = self._detokenizer.finish()
        if self._stops is None:
            return tail, None
        text, matched = self._stops.push(tail)
        return (text, matched) if matched is not None else (text + self._stops.flush(), None)
