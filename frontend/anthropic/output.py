"""Parts of an answer -> the blocks of a message, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..answers.parts import AnswerPart, ReasoningPart, TextPart, ToolCallPart
from .answer import (
    ContentBlock,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    MessageEvent,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)


class MessageOutput:
    """One message's blocks as its parts come: each part goes on with the open block, or closes it and opens another.

    Attributes:
        blocks: those that are whole.
        has_calls: whether one of them is a call.
    """

    def __init__(self) -> None:
        self.blocks: list[ContentBlock] = []
        self.has_calls = False
        self._open: ContentBlock | None = None
        self._call_index = -1
        self._texts: list[str] = []
        self._blanks = ""  # white space that may only separate blocks

    def push(self, parts: Iterable[AnswerPart]) -> list[MessageEvent]:
        """Add parts; return the events that tell of them."""
        events: list[MessageEvent] = []
        for part in parts:
            match part:
                case TextPart():
                    self._add_text(part.text, events)
                case ReasoningPart():
                    if not isinstance(self._open, ThinkingBlock):
                        self._begin(ThinkingBlock(thinking=""), events)
                    self._add(part.text, ThinkingDelta(thinking=part.text), events)
                case ToolCallPart():
                    self._add_call(part, events)
        return events

    def finish(self) -> list[MessageEvent]:
        """Close the last block; an answer without any becomes an empty text."""
        events: list[MessageEvent] = []
        if self._open is None and not self.blocks:
            self._begin(TextBlock(text=""), events)
            if self._blanks:
                self._add(self._blanks, TextDelta(text=self._blanks), events)
        self._close(events)
        return events

    def _add_text(self, text: str, events: list[MessageEvent]) -> None:
        if not isinstance(self._open, TextBlock):
            self._blanks += text
            if not self._blanks.strip():
                return
            text = self._blanks
            self._begin(TextBlock(text=""), events)
        self._add(text, TextDelta(text=text), events)

    def _add_call(self, part: ToolCallPart, events: list[MessageEvent]) -> None:
        if not isinstance(self._open, ToolUseBlock) or part.index != self._call_index:
            self._call_index = part.index
            self.has_calls = True
            self._begin(ToolUseBlock(id=part.id or "", name=part.name or "", input={}), events)
        if part.arguments:
            self._add(part.arguments, InputJsonDelta(partial_json=part.arguments), events)

    def _begin(self, block: ContentBlock, events: list[MessageEvent]) -> None:
        self._close(events)
        self._blanks = "" if not isinstance(block, TextBlock) else self._blanks
        self._open = block
        events.append(ContentBlockStart(index=len(self.blocks), content_block=block))

    def _add(self, text: str, delta: TextDelta | ThinkingDelta | InputJsonDelta, events: list[MessageEvent]) -> None:
        self._texts.append(text)
        events.append(ContentBlockDelta(index=len(self.blocks), delta=delta))

    def _close(self, events: list[MessageEvent]) -> None:
        if self._open is None:
            return
        events.append(ContentBlockStop(index=len(self.blocks)))
        self.blocks.append(_filled(self._open, "".join(self._texts)))
        self._open = None
        self._texts = []
        self._blanks = ""


def _filled(block: ContentBlock, text: str) -> ContentBlock:
    match block:
        case TextBlock():
            return msgspec.structs.replace(block, text=text)
        case ThinkingBlock():
            return msgspec.structs.replace(block, thinking=text)
        case ToolUseBlock():
            return msgspec.structs.replace(block, input=_arguments(text))


def _arguments(text: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return {}
