"""The parts of an answer, in the order in which the model wrote them. Every dialect's writer writes these."""

from __future__ import annotations

import msgspec


class TextPart(msgspec.Struct, frozen=True, gc=False):
    """Text for the user; never empty."""

    text: str


class ReasoningPart(msgspec.Struct, frozen=True, gc=False):
    """Text that the model wrote while it thought; never empty."""

    text: str


class ToolCallPart(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A piece of a call of a tool.

    Attributes:
        index: which call of the answer, from 0; a call's parts follow each other.
        id: the call's id, in its first part; None in the others.
        name: the tool's name, in its first part; None in the others.
        arguments: what this part adds to the arguments, which are JSON once all parts are joined.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


AnswerPart = TextPart | ReasoningPart | ToolCallPart
