"""Reasoning in front of an answer: `<think>...</think>`, taken off as it comes."""

from __future__ import annotations

from .parts import AnswerPart, ReasoningPart
from .tags import open_tag_length

OPEN_TAG, CLOSE_TAG = "<think>", "</think>"


class ReasoningSplitter:
    """Takes the think block off the front of one answer.

    White space around the tags belongs to them: it is neither reasoning nor text. An answer that never closes its
    block is reasoning up to its end; one that doesn't begin with a block has none.

    Args:
        starts_inside: the prompt has opened the block, or the model never writes the opening tag.
        shows: False leaves the reasoning out.

    Attributes:
        has_opened: whether there is or was a block.
    """

    def __init__(self, *, starts_inside: bool, shows: bool = True) -> None:
        self._shows = shows
        self.has_opened = starts_inside
        self._is_before = True  # nothing but white space and a piece of the tag so far
        self._starts_inside = starts_inside
        self._is_after = False
        self._strips = True  # white space at this place is the tag's
        self._held = ""

    @property
    def is_inside(self) -> bool:
        """Whether what comes next is known to be reasoning."""
        return not self._is_after and (self._starts_inside or not self._is_before)

    def push(self, text: str) -> tuple[list[AnswerPart], str]:
        """Return (reasoning that is decided now, text behind the block)."""
        if self._is_after:
            return [], self._strip(text)
        self._held += text
        if self._is_before and not self._open():
            return [], self._give_up() if self._is_after else ""
        return self._read_inside()

    def finish(self) -> tuple[list[AnswerPart], str]:
        """Return the same at the end of the text."""
        held, self._held = self._held, ""
        if self._is_after:
            return [], ""
        self._is_after = True
        if self._is_before and not self._starts_inside:
            return [], held
        return self._reasoning(held.strip() if self._strips else held.rstrip()), ""

    def _open(self) -> bool:
        """Pass the opening tag; False if it isn't decided whether there is one, or if there is none."""
        bare = self._held.lstrip()
        if bare.startswith(OPEN_TAG):
            self._held = bare[len(OPEN_TAG) :]
        elif OPEN_TAG.startswith(bare):
            return False
        elif not self._starts_inside:
            self._is_after = True
            self._strips = False
            return False
        self._is_before = False
        self.has_opened = True
        return True

    def _give_up(self) -> str:
        held, self._held = self._held, ""
        return held

    def _read_inside(self) -> tuple[list[AnswerPart], str]:
        if self._strips:
            self._held = self._held.lstrip()
            self._strips = not self._held
        reasoning, tag, rest = self._held.partition(CLOSE_TAG)
        if tag:
            self._held = ""
            self._is_after = self._strips = True
            return self._reasoning(reasoning.rstrip()), self._strip(rest)
        decided = self._held[: len(self._held) - open_tag_length(self._held, (CLOSE_TAG,))].rstrip()
        self._held = self._held[len(decided) :]
        return self._reasoning(decided), ""

    def _strip(self, text: str) -> str:
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        return text

    def _reasoning(self, text: str) -> list[AnswerPart]:
        return [ReasoningPart(text)] if text and self._shows else []
