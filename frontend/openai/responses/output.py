"""Parts of an answer -> the items of a response's output, and the events that tell of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

import msgspec

from ...answers.parts import AnswerPart, ReasoningPart, TextPart, ToolCallPart
from ..bodies.responses import ChatTokenLogprob
from .answer import FunctionCallItem, ItemStatus, OutputItem, OutputMessage, OutputText, ReasoningItem, ReasoningText
from .events import (
    ContentPartAdded,
    ContentPartDone,
    FunctionCallArgumentsDelta,
    FunctionCallArgumentsDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    ResponseEvent,
)


class ResponseOutput:
    """One response's output as its parts come: each part goes on with the open item, or closes it and opens another.

    Args:
        next_number: gives each event its sequence number.
        new_id: makes an item's id, given its prefix.

    Attributes:
        items: those that are whole.
    """

    def __init__(self, next_number: Callable[[], int], new_id: Callable[[str], str] | None = None) -> None:
        self.items: list[OutputItem] = []
        self._next_number = next_number
        self._new_id = new_id or (lambda prefix: f"{prefix}_{uuid.uuid4().hex}")
        self._open: _Message | _Reasoning | _Call | None = None
        self._blanks = ""  # white space that may only separate items

    def push(self, parts: Iterable[AnswerPart], logprobs: list[ChatTokenLogprob] | None = None) -> list[ResponseEvent]:
        """Add parts; return the events that tell of them.

        Args:
            parts: in order.
            logprobs: those of the tokens that brought them; they go to the first text among the parts.
        """
        events: list[ResponseEvent] = []
        for part in parts:
            match part:
                case TextPart():
                    self._add_text(part.text, logprobs or [], events)
                    logprobs = None
                case ReasoningPart():
                    self._add_reasoning(part.text, events)
                case ToolCallPart():
                    self._add_call(part, events)
        return events

    def finish(self, status: ItemStatus) -> list[ResponseEvent]:
        """Close the last item; an answer without any becomes an empty message.

        Args:
            status: the last item's.
        """
        events: list[ResponseEvent] = []
        if self._open is None and not self.items:
            self._open_item(_Message(self._new_id("msg"), 0), events)
            self._append(self._blanks, [], events)
        self._close(status, events)
        return events

    def cut(self) -> None:
        """Close the last item where a failure ended it."""
        self._close("incomplete", [])

    def _add_text(self, text: str, logprobs: list[ChatTokenLogprob], events: list[ResponseEvent]) -> None:
        if not isinstance(self._open, _Message):
            self._blanks += text
            if not self._blanks.strip():
                return
            text, self._blanks = self._blanks, ""
            self._close("completed", events)
            self._open_item(_Message(self._new_id("msg"), len(self.items)), events)
        self._append(text, logprobs, events)

    def _add_reasoning(self, text: str, events: list[ResponseEvent]) -> None:
        if not text:
            return
        if not isinstance(self._open, _Reasoning):
            self._close("completed", events)
            self._open_item(_Reasoning(self._new_id("rs"), len(self.items)), events)
        self._append(text, [], events)

    def _add_call(self, part: ToolCallPart, events: list[ResponseEvent]) -> None:
        if not isinstance(self._open, _Call) or self._open.call_index != part.index:
            self._close("completed", events)
            self._blanks = ""
            call = _Call(
                self._new_id("fc"), len(self.items), part.index, part.id or self._new_id("call"), part.name or ""
            )
            self._open_item(call, events)
        self._append(part.arguments, [], events)

    def _open_item(self, item: _Message | _Reasoning | _Call, events: list[ResponseEvent]) -> None:
        self._open = item
        events.extend(item.begin(self._next_number))

    def _append(self, text: str, logprobs: list[ChatTokenLogprob], events: list[ResponseEvent]) -> None:
        assert self._open is not None
        if text or logprobs:
            events.append(self._open.add(text, logprobs, self._next_number))

    def _close(self, status: ItemStatus, events: list[ResponseEvent]) -> None:
        if self._open is None:
            return
        item = self._open.whole(status)
        events.extend(self._open.end(item, self._next_number))
        self.items.append(item)
        self._open = None


class _Item:
    """An item that is still open."""

    def __init__(self, item_id: str, output_index: int) -> None:
        self._id = item_id
        self._at = output_index
        self._texts: list[str] = []

    @property
    def _text(self) -> str:
        return "".join(self._texts)


class _Message(_Item):
    def __init__(self, item_id: str, output_index: int) -> None:
        super().__init__(item_id, output_index)
        self._logprobs: list[ChatTokenLogprob] = []

    def begin(self, next_number: Callable[[], int]) -> list[ResponseEvent]:
        item = OutputMessage(id=self._id, status="in_progress", content=[])
        part = OutputText(text="")
        return [
            OutputItemAdded(sequence_number=next_number(), output_index=self._at, item=item),
            ContentPartAdded(sequence_number=next_number(), item_id=self._id, output_index=self._at, part=part),
        ]

    def add(self, text: str, logprobs: list[ChatTokenLogprob], next_number: Callable[[], int]) -> ResponseEvent:
        self._texts.append(text)
        self._logprobs.extend(logprobs)
        return OutputTextDelta(
            sequence_number=next_number(), item_id=self._id, output_index=self._at, delta=text, logprobs=logprobs
        )

    def whole(self, status: ItemStatus) -> OutputMessage:
        part = OutputText(text=self._text, logprobs=[_with_bytes(each) for each in self._logprobs])
        return OutputMessage(id=self._id, status=status, content=[part])

    def end(self, item: OutputItem, next_number: Callable[[], int]) -> list[ResponseEvent]:
        assert isinstance(item, OutputMessage)
        [part] = item.content
        return [
            OutputTextDone(
                sequence_number=next_number(),
                item_id=self._id,
                output_index=self._at,
                text=part.text,
                logprobs=part.logprobs,
            ),
            ContentPartDone(sequence_number=next_number(), item_id=self._id, output_index=self._at, part=part),
            OutputItemDone(sequence_number=next_number(), output_index=self._at, item=item),
        ]


class _Reasoning(_Item):
    def begin(self, next_number: Callable[[], int]) -> list[ResponseEvent]:
        item = ReasoningItem(id=self._id, status="in_progress", content=[])
        part = ReasoningText(text="")
        return [
            OutputItemAdded(sequence_number=next_number(), output_index=self._at, item=item),
            ContentPartAdded(sequence_number=next_number(), item_id=self._id, output_index=self._at, part=part),
        ]

    def add(self, text: str, _logprobs: list[ChatTokenLogprob], next_number: Callable[[], int]) -> ResponseEvent:
        self._texts.append(text)
        return ReasoningTextDelta(sequence_number=next_number(), item_id=self._id, output_index=self._at, delta=text)

    def whole(self, status: ItemStatus) -> ReasoningItem:
        return ReasoningItem(id=self._id, status=status, content=[ReasoningText(text=self._text)])

    def end(self, item: OutputItem, next_number: Callable[[], int]) -> list[ResponseEvent]:
        assert isinstance(item, ReasoningItem)
        [part] = item.content
        return [
            ReasoningTextDone(sequence_number=next_number(), item_id=self._id, output_index=self._at, text=part.text),
            ContentPartDone(sequence_number=next_number(), item_id=self._id, output_index=self._at, part=part),
            OutputItemDone(sequence_number=next_number(), output_index=self._at, item=item),
        ]


class _Call(_Item):
    def __init__(self, item_id: str, output_index: int, call_index: int, call_id: str, name: str) -> None:
        super().__init__(item_id, output_index)
        self.call_index = call_index
        self._call_id = call_id
        self._name = name

    def begin(self, next_number: Callable[[], int]) -> list[ResponseEvent]:
        item = self.whole("in_progress")
        return [OutputItemAdded(sequence_number=next_number(), output_index=self._at, item=item)]

    def add(self, text: str, _logprobs: list[ChatTokenLogprob], next_number: Callable[[], int]) -> ResponseEvent:
        self._texts.append(text)
        return FunctionCallArgumentsDelta(
            sequence_number=next_number(), item_id=self._id, output_index=self._at, delta=text
        )

    def whole(self, status: ItemStatus) -> FunctionCallItem:
        return FunctionCallItem(
            id=self._id, status=status, call_id=self._call_id, name=self._name, arguments=self._text
        )

    def end(self, item: OutputItem, next_number: Callable[[], int]) -> list[ResponseEvent]:
        assert isinstance(item, FunctionCallItem)
        return [
            FunctionCallArgumentsDone(
                sequence_number=next_number(),
                item_id=self._id,
                output_index=self._at,
                name=self._name,
                arguments=item.arguments,
            ),
            OutputItemDone(sequence_number=next_number(), output_index=self._at, item=item),
        ]


def _with_bytes(entry: ChatTokenLogprob) -> ChatTokenLogprob:
    """Return a logprob as whole texts have it: control tokens, which have no text, have no bytes rather than null."""
    top = [msgspec.structs.replace(each, bytes=each.bytes or []) for each in entry.top_logprobs]
    return msgspec.structs.replace(entry, bytes=entry.bytes or [], top_logprobs=top)
