"""Find stop strings in text that comes in pieces, wherever the pieces are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopResult(NamedTuple):
    """What one piece of text led to.

    `text_to_emit` is text that is now decided; `matched` is the stop string that ended the text, None if none did.
    """

    text_to_emit: str
    matched: str | None


class StopStrings:
    """The stop strings of one request, matched against its text.

    The match that completes first ends the text; of those that complete at the same character, the longest, as it
    starts first. Where pieces of text are cut plays no part. Text that may still become a stop string is held back,
    and no more than that; with `include_in_output` nothing is, since it belongs to the output either way.

    Args:
        stops: none of them empty (validation refuses that).
        include_in_output: the text ends after the stop string, not before it.
    """

    def __init__(self, stops: Sequence[str], *, include_in_output: bool) -> None:
        assert all(stops), "an empty stop string matches everywhere: validation refuses it"
        self._stops = tuple(dict.fromkeys(stops))
        self._include_in_output = include_in_output
        self._first_characters = frozenset(stop[0] for stop in self._stops)
        self._max_open = max(map(len, self._stops), default=1) - 1
        self._open = ""  # the end of the text: the longest that is the beginning of a stop string
        self._ended = False

    def push(self, text: str, *, can_stop: bool = True) -> StopResult:
        """Add `text` to the output.

        Args:
            text: the next piece.
            can_stop: False while fewer than min_tokens were made: a stop string that is completed within this piece is
                ordinary text; one that only begins in it may still be completed by a later piece.

        Returns:
            What may be sent now, and the stop string that ended the output.
        """
        assert not self._ended, "the output already ended at a stop string"
        if not self._stops:
            return StopResult(text, None)
        num_open = len(self._open)
        unsettled = self._open + text
        match = self._first_match(unsettled, num_open) if can_stop else None
        if match is not None:
            self._ended = True
            start, end, stop = match
            return StopResult(unsettled[num_open:end] if self._include_in_output else unsettled[:start], stop)
        self._open = self._open_end(unsettled)
        return StopResult(
            text if self._include_in_output else unsettled[: len(unsettled) - len(self._open)],
            None,
        )

    def flush(self) -> str:
        """Return what is still held back, when the output ends for another reason."""
        held = "" if self._include_in_output or self._ended else self._open
        self._open = ""
        return held

    def _first_match(self, unsettled: str, num_open: int) -> tuple[int, int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            # A match must end in the new text: those that ended earlier were judged, and were no stop.
            start = unsettled.find(stop, max(0, num_open - len(stop) + 1))
            if start < 0:
                continue
            end = start + len(stop)
            if best is None or (end, start) < (best[1], best[0]):
                best = (start, end, stop)
        return best

    def _open_end(self, unsettled: str) -> str:
        tail = unsettled[max(0, len(unsettled) - self._max_open) :]
        if self._first_characters.isdisjoint(tail):  # nearly always: one pass in C instead of the loop
            return ""
        for start, character in enumerate(tail):
            if character not in self._first_characters:
                continue
            end = tail[start:]
            if any(len(stop) > len(end) and stop.startswith(end) for stop in self._stops):
                return end
        return ""
