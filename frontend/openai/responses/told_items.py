"""Items of a response's output, and the events that tell of each: as they come, and again later.

To be told again, an item needs its text and the places where the pieces of it ended: eight bytes an event.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator

import msgspec

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

NextNumber = Callable[[], int]


class ToldItem(ABC):
    """One item: opened by `begin`, grown by `add`, made whole by `close`; `told` repeats the events of all three.

    Args:
        item_id: its id.
        output_index: its place in the output.

    Attributes:
        item: the whole item, once it is closed.
    """

    def __init__(self, item_id: str, output_index: int) -> None:
        self.item: OutputItem | None = None
        self._id = item_id
        self._at = output_index
        self._first_number = 0
        self._texts: list[str] = []
        self._text_ends = array("I")
        self._logprobs: list[ChatTokenLogprob] = []
        self._logprob_ends = array("I")

    @property
    def num_bytes(self) -> int:
        """What it takes to tell the item again, beside the item itself."""
        return self._text_ends.itemsize * (len(self._text_ends) + len(self._logprob_ends))

    def begin(self, next_number: NextNumber) -> list[ResponseEvent]:
        """Return the events that open the item."""
        events = self._opening(next_number)
        self._first_number = events[0].sequence_number
        return events

    def add(self, text: str, logprobs: list[ChatTokenLogprob], next_number: NextNumber) -> ResponseEvent:
        """Add a piece; return its event."""
        self._texts.append(text)
        self._text_ends.append((self._text_ends[-1] if self._text_ends else 0) + len(text))
        self._logprobs.extend(logprobs)
        self._logprob_ends.append(len(self._logprobs))
        return self._delta(text, logprobs, next_number)

    def close(self, status: ItemStatus, next_number: NextNumber) -> list[ResponseEvent]:
        """Make the item whole; return the events that say so."""
        self._texts = [self._text]
        self.item = self._whole(status)
        return self._closing(self.item, next_number)

    def told(self, after: int, limit: int) -> list[ResponseEvent]:
        """Return the item's events so far that follow the one of number `after`, at most about `limit` of them."""
        events = self._opening(itertools.count(self._first_number).__next__)
        first_piece = self._first_number + len(events)
        start = min(max(after + 1 - first_piece, 0), len(self._text_ends))
        stop = min(start + limit, len(self._text_ends))
        next_number = itertools.count(first_piece + start).__next__
        events += [self._delta(text, logprobs, next_number) for text, logprobs in self._pieces(start, stop)]
        if self.item is not None and stop == len(self._text_ends):
            events += self._closing(self.item, next_number)
        return [event for event in events if event.sequence_number > after]

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[str, list[ChatTokenLogprob]]]:
        text = self._text
        for index in range(start, stop):
            text_start, logprob_start = (self._text_ends[index - 1], self._logprob_ends[index - 1]) if index else (0, 0)
            yield (
                text[text_start : self._text_ends[index]],
                self._logprobs[logprob_start : self._logprob_ends[index]],
            )

    @property
    def _text(self) -> str:
        return "".join(self._texts)

    # ---- what kinds of items differ in

    @abstractmethod
    def _opening(self, next_number: NextNumber) -> list[ResponseEvent]:
        """Return the events that open it, before any text."""

    @abstractmethod
    def _delta(self, text: str, logprobs: list[ChatTokenLogprob], next_number: NextNumber) -> ResponseEvent:
        """Return the event of a piece."""

    @abstractmethod
    def _whole(self, status: ItemStatus) -> OutputItem:
        """Return the item as it is."""

    @abstractmethod
    def _closing(self, item: OutputItem, next_number: NextNumber) -> list[ResponseEvent]:
        """Return the events that say that it is whole."""


class ToldMessage(ToldItem):
    """What the model says."""

    def _opening(self, next_number: NextNumber) -> list[ResponseEvent]:
        item = OutputMessage(id=self._id, status="in_progress", content=[])
        part = OutputText(text="")
        return [
            OutputItemAdded(sequence_number=next_number(), output_index=self._at, item=item),
            ContentPartAdded(sequence_number=next_number(), item_id=self._id, output_index=self._at, part=part),
        ]

    def _delta(self, text: str, logprobs: list[ChatTokenLogprob], next_number: NextNumber) -> ResponseEvent:
        return OutputTextDelta(
            sequence_number=next_number(), item_id=self._id, output_index=self._at, delta=text, logprobs=logprobs
        )

    def _whole(self, status: ItemStatus) -> OutputMessage:
        part = OutputText(text=self._text, logprobs=[_with_bytes(each) for each in self._logprobs])
        return OutputMessage(id=self._id, status=status, content=[part])

    def _closing(self, item: OutputItem, next_number: NextNumber) -> list[ResponseEvent]:
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


class ToldReasoning(ToldItem):
    """What the model thinks."""

    def _opening(self, next_number: NextNumber) -> list[ResponseEvent]:
        item = ReasoningItem(id=self._id, status="in_progress", content=[])
        part = ReasoningText(text="")
        return [
            OutputItemAdded(sequence_number=next_number(), output_index=self._at, item=item),
            ContentPartAdded(sequence_number=next_number(), item_id=self._id, output_index=self._at, part=part),
        ]

    def _delta(self, text: str, logprobs: list[ChatTokenLogprob], next_number: NextNumber) -> ResponseEvent:
        return ReasoningTextDelta(sequence_number=next_number(), item_id=self._id, output_index=self._at, delta=text)

    def _whole(self, status: ItemStatus) -> ReasoningItem:
        return ReasoningItem(id=self._id, status=status, content=[ReasoningText(text=self._text)])

    def _closing(self, item: OutputItem, next_number: NextNumber) -> list[ResponseEvent]:
        assert isinstance(item, ReasoningItem)
        [part] = item.content
        return [
            ReasoningTextDone(sequence_number=next_number(), item_id=self._id, output_index=self._at, text=part.text),
            ContentPartDone(sequence_number=next_number(), item_id=self._id, output_index=self._at, part=part),
            OutputItemDone(sequence_number=next_number(), output_index=self._at, item=item),
        ]


class ToldCall(ToldItem):
    """A tool that the model calls.

    Args:
        item_id: its id.
        output_index: its place in the output.
        call_index: its number among the answer's calls.
        call_id: the id that its result will bear.
        name: of the tool.
    """

    def __init__(self, item_id: str, output_index: int, call_index: int, call_id: str, name: str) -> None:
        super().__init__(item_id, output_index)
        self.call_index = call_index
        self._call_id = call_id
        self._name = name

    def _opening(self, next_number: NextNumber) -> list[ResponseEvent]:
        item = self._item("in_progress", "")
        return [OutputItemAdded(sequence_number=next_number(), output_index=self._at, item=item)]

    def _delta(self, text: str, logprobs: list[ChatTokenLogprob], next_number: NextNumber) -> ResponseEvent:
        return FunctionCallArgumentsDelta(
            sequence_number=next_number(), item_id=self._id, output_index=self._at, delta=text
        )

    def _whole(self, status: ItemStatus) -> FunctionCallItem:
        return self._item(status, self._text)

    def _closing(self, item: OutputItem, next_number: NextNumber) -> list[ResponseEvent]:
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

    def _item(self, status: ItemStatus, arguments: str) -> FunctionCallItem:
        return FunctionCallItem(id=self._id, status=status, call_id=self._call_id, name=self._name, arguments=arguments)


def _with_bytes(entry: ChatTokenLogprob) -> ChatTokenLogprob:
    """Return a logprob as whole texts have it: control tokens, which have no text, have no bytes rather than null."""
    top = [msgspec.structs.replace(each, bytes=each.bytes or []) for each in entry.top_logprobs]
    return msgspec.structs.replace(entry, bytes=entry.bytes or [], top_logprobs=top)
