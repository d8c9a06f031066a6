"""The parts of an answer with calls, as a parser puts them together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import msgspec

from .parts import AnswerPart, TextPart, ToolCallPart


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
    """Return the same parts with neighbours of one kind joined, in time linear in their text."""
    merged: list[AnswerPart] = []
    for _, neighbours in itertools.groupby(parts, _kind):
        first, *others = neighbours
        if not others:
            merged.append(first)
        elif isinstance(first, ToolCallPart):
            arguments = [part.arguments for part in (first, *others) if isinstance(part, ToolCallPart)]
            merged.append(msgspec.structs.replace(first, arguments="".join(arguments)))
        else:
            texts = [part.text for part in (first, *others) if not isinstance(part, ToolCallPart)]
            merged.append(msgspec.structs.replace(first, text="".join(texts)))
    return merged


def _kind(part: AnswerPart) -> tuple[type[AnswerPart], int]:
    return type(part), part.index if isinstance(part, ToolCallPart) else 0
