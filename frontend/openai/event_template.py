"""Stream events that differ in their text alone: everything else is encoded once."""

from __future__ import annotations

from collections.abc import Callable

from .bodies.json_body import encode_json

_MARK = "\0"  # in no id, no model's name


class EventTemplate:
    """Writes the events of one choice that bring a piece of text and nothing more.

    Args:
        write: returns the whole event for a text. Called once.
    """

    def __init__(self, write: Callable[[str], bytes]) -> None:
        self._head, _, self._tail = write(_MARK).partition(encode_json(_MARK))

    def fill(self, text: str) -> bytes:
        """Return the event for a text."""
        return self._head + encode_json(text) + self._tail
