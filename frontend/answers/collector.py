"""The parts of an answer with calls, as a parser puts them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from .parts import AnswerPart, ReasoningPart, TextPart, ToolCallPart


class PartCollector:
    """Numbers calls, and keeps the white space around them out of the text.

    Args:
        make_id: returns the id of the next call.
        is_parallel: whether an answer may hold several calls; if not, those after the first are left out.
    """

    def __init__(self, make_id: Callable[[], str], *, is_parallel: bool) -> None:
        self._make_id = make_id
        self._is_parallel = is_parallel
        self._parts: list[AnswerPart] = []
        self._space = ""  # before a call it is nobody's, before text it is text
        self._num_calls = 0
        self._follows_call = False

    def text(self, text: str) -> None:
        """Add text."""
        if self._follows_call:
            text = text.lstrip()
        if not text:
            return
        self._follows_call = False
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            self._parts.append(TextPart(shown))

    def begin(self, name: str) -> None:
        """Begin a call."""
        self._space = ""
        self._follows_call = True
        self._num_calls += 1
        if self._is_shown:
            self._parts.append(ToolCallPart(index=self._num_calls - 1, id=self._make_id(), name=name))

    def arguments(self, text: str) -> None:
        """Add to the arguments of the call that was begun last."""
        if text and self._is_shown:
            self._parts.append(ToolCallPart(index=self._num_calls - 1, arguments=text))

    def finish(self) -> None:
        """End the answer: white space at its end is text, unless it follows a call."""
        if self._space:
            self._parts.append(TextPart(self._space))
            self._space = ""

    def take(self) -> list[AnswerPart]:
        """Return the parts that were added since the last time."""
        parts, self._parts = self._parts, []
        return parts if len(parts) < 2 else merge_parts(parts)

    @property
    def _is_shown(self) -> bool:
        return self._is_parallel or self._num_calls == 1


def merge_parts(parts: Iterable[AnswerPart]) -> list[AnswerPart]:
    """Return the same parts with neighbours of one kind joined."""
    merged: list[AnswerPart] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(last, TextPart) and isinstance(part, TextPart):
            merged[-1] = TextPart(last.text + part.text)
        elif isinstance(last, ReasoningPart) and isinstance(part, ReasoningPart):
            merged[-1] = ReasoningPart(last.text + part.text)
        elif isinstance(last, ToolCallPart) and isinstance(part, ToolCallPart) and last.index == part.index:
            merged[-1] = msgspec.structs.replace(last, arguments=last.arguments + part.arguments)
        else:
            merged.append(part)
    return merged
