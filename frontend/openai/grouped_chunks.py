"""Chunks of a stream put together until they hold so many tokens (`stream_interval`)."""

from __future__ import annotations

from ..text.generation import TextChunk


class GroupedChunks:
    """The chunks of one prompt's children on their way to a writer.

    A child's first chunk and its last are passed on at once, as clients time the first token and wait for the last.

    Args:
        interval: tokens that are sent together.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._num_sent: dict[int, int] = {}
        self._waiting: dict[int, TextChunk] = {}

    def add(self, chunk: TextChunk) -> TextChunk | None:
        """Take a chunk; return it with those that waited, or None while it has to wait itself."""
        if self._interval == 1:
            return chunk
        waiting = self._waiting.pop(chunk.index, None)
        if waiting is not None:
            chunk = _join(waiting, chunk)
        num_sent = self._num_sent.get(chunk.index)
        is_due = num_sent is None or chunk.num_output_tokens - num_sent >= self._interval
        if not is_due and chunk.finish_reason is None:
            self._waiting[chunk.index] = chunk
            return None
        self._num_sent[chunk.index] = chunk.num_output_tokens
        return chunk


def _join(first: TextChunk, second: TextChunk) -> TextChunk:
    return TextChunk(
        index=second.index,
        text=first.text + second.text,
        token_ids=[*first.token_ids, *second.token_ids],
        logprobs=[*first.logprobs, *second.logprobs],
        finish_reason=second.finish_reason,
        stop_reason=second.stop_reason,
        num_output_tokens=second.num_output_tokens,
    )
