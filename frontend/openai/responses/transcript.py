"""What the stream of one response tells, so that it can be told again from any event on, and be followed live."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable

from ...answers.parts import AnswerPart
from ...exchange.messages import EventPage
from ..bodies.responses import ChatTokenLogprob
from ..named_events import encode_events
from .answer import ItemStatus, OutputItem, ResponseObject
from .events import (
    ResponseCompleted,
    ResponseCreated,
    ResponseEvent,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
)
from .output import ResponseOutput

_EVENTS_A_PAGE = 500  # so that a long answer is not encoded in one go
_WAIT_S = 0.5  # within the time that another frontend waits for an answer


class Transcript:
    """See the module. Whatever pushes gets the new events, to send them on.

    Args:
        response: as it begins.
        new_id: makes an item's id, given its prefix.

    Attributes:
        has_ended: whether `end` was called; whatever is pushed after it is dropped.
    """

    def __init__(self, response: ResponseObject, new_id: Callable[[str], str] | None = None) -> None:
        self._numbers = itertools.count()
        self._opening: list[ResponseEvent] = [
            ResponseCreated(sequence_number=next(self._numbers), response=response),
            ResponseInProgress(sequence_number=next(self._numbers), response=response),
        ]
        self._output = ResponseOutput(self._numbers.__next__, new_id)
        self._ending: ResponseEvent | None = None
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def has_ended(self) -> bool:
        """See the class."""
        return self._ending is not None

    @property
    def items(self) -> list[OutputItem]:
        """The items that are whole."""
        return self._output.items

    @property
    def num_bytes(self) -> int:
        """What it takes to tell it again, beside the response itself."""
        return self._output.num_bytes

    def opening(self) -> list[ResponseEvent]:
        """Return the events that say that the response begins."""
        return self._opening

    def push(self, parts: Iterable[AnswerPart], logprobs: list[ChatTokenLogprob]) -> list[ResponseEvent]:
        """Add parts of the answer; return their events."""
        return [] if self.has_ended else self._notify(self._output.push(parts, logprobs))

    def finish(self, status: ItemStatus) -> list[ResponseEvent]:
        """Close the last item; return the events that say so."""
        return [] if self.has_ended else self._notify(self._output.finish(status))

    def cut(self) -> list[ResponseEvent]:
        """Close the last item where something ended it; return the events that say so."""
        return [] if self.has_ended else self._notify(self._output.cut())

    def end(self, response: ResponseObject) -> ResponseEvent:
        """Note what became of the response; return the event that says so."""
        if self._ending is None:
            number = next(self._numbers)
            match response.status:
                case "completed":
                    self._ending = ResponseCompleted(sequence_number=number, response=response)
                case "failed":
                    self._ending = ResponseFailed(sequence_number=number, response=response)
                case _:
                    self._ending = ResponseIncomplete(sequence_number=number, response=response)
            self._notify([self._ending])
        return self._ending

    async def page(self, after: int) -> EventPage:
        """Return events that follow the one of number `after`, waiting a little for the first: maybe none."""
        events = self._told(after)
        if not events and not self.has_ended:
            changed = asyncio.get_running_loop().create_future()
            self._waiting.add(changed)
            try:
                await asyncio.wait([changed], timeout=_WAIT_S)
            finally:
                self._waiting.discard(changed)
            events = self._told(after)
        last = events[-1].sequence_number if events else after
        return EventPage(
            events=encode_events(events), last_number=last, is_last=self.has_ended and last >= self._last_number
        )

    @property
    def _last_number(self) -> int:
        return -1 if self._ending is None else self._ending.sequence_number

    def _told(self, after: int) -> list[ResponseEvent]:
        events = [event for event in self._opening if event.sequence_number > after]
        events += self._output.told(after, _EVENTS_A_PAGE)
        if self._ending is not None and len(events) < _EVENTS_A_PAGE and after < self._last_number:
            events.append(self._ending)
        return events

    def _notify(self, events: list[ResponseEvent]) -> list[ResponseEvent]:
        if events:
            for changed in self._waiting:
                if not changed.done():
                    changed.set_result(None)
            self._waiting.clear()
        return events
