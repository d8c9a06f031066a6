"""Text of one answer -> its parts: first the reasoning, then text and tool calls.

A pure function of the text, however it was cut: a stream and a whole answer are read by the same machine.
"""

from __future__ import annotations

from typing import Protocol

from .parts import AnswerPart, TextPart
from .reasoning import ReasoningSplitter


class PartReader(Protocol):
    """Reads one answer in pieces. The joined parts depend on the whole text alone, not on where it is cut."""

    def push(self, text: str) -> list[AnswerPart]:
        """Return the parts that are decided now; text that may still become something else is held back."""

    def finish(self) -> list[AnswerPart]:
        """Return what was held back, at the end of the text. Called once, after the last push."""


class TextReader:
    """Reads answers that are text and nothing else."""

    def push(self, text: str) -> list[AnswerPart]:
        """See `PartReader`."""
        return [TextPart(text)] if text else []

    def finish(self) -> list[AnswerPart]:
        """See `PartReader`."""
        return []


class AnswerReader:
    """Reads one answer.

    Args:
        reasoning: takes the reasoning off the front; None where the model has none.
        rest: reads what follows.
    """

    def __init__(self, reasoning: ReasoningSplitter | None, rest: PartReader) -> None:
        self._reasoning = reasoning
        self._rest = rest

    @property
    def is_reasoning(self) -> bool:
        """Whether the text is known to be within the reasoning now."""
        return self._reasoning is not None and self._reasoning.is_inside

    @property
    def has_reasoned(self) -> bool:
        """Whether there is or was a think block."""
        return self._reasoning is not None and self._reasoning.has_opened

    def push(self, text: str) -> list[AnswerPart]:
        """See `PartReader`."""
        if self._reasoning is None:
            return self._rest.push(text)
        parts, text = self._reasoning.push(text)
        return [*parts, *self._rest.push(text)] if text else parts

    def finish(self) -> list[AnswerPart]:
        """See `PartReader`."""
        if self._reasoning is None:
            return self._rest.finish()
        parts, text = self._reasoning.finish()
        return [*parts, *(self._rest.push(text) if text else ()), *self._rest.finish()]
