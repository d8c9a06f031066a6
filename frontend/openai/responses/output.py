"""Parts of an answer -> the items of a response's output, and the events that tell of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

from ...answers.parts import AnswerPart, ReasoningPart, TextPart, ToolCallPart
from ..bodies.responses import ChatTokenLogprob
from .answer import ItemStatus, OutputItem
from .events import ResponseEvent
from .told_items import ToldCall, ToldItem, ToldMessage, ToldReasoning


class ResponseOutput:
    """One response's output as its parts come: each part goes on with the open item, or closes it and opens another.

    Args:
        next_number: gives each event its sequence number.
        new_id: makes an item's id, given its prefix.
    """

    def __init__(self, next_number: Callable[[], int], new_id: Callable[[str], str] | None = None) -> None:
        self._told: list[ToldItem] = []  # all but the last are closed
        self._next_number = next_number
        self._new_id = new_id or (lambda prefix: f"{prefix}_{uuid.uuid4().hex}")
        self._blanks = ""  # white space that may only separate items
        self._logprobs: list[ChatTokenLogprob] = []  # of tokens whose text is held back

    @property
    def items(self) -> list[OutputItem]:
        """The items that are whole."""
        return [told.item for told in self._told if told.item is not None]

    @property
    def num_bytes(self) -> int:
        """What it takes to tell the items again, beside the items themselves."""
        return sum(told.num_bytes for told in self._told)

    def push(self, parts: Iterable[AnswerPart], logprobs: list[ChatTokenLogprob] | None = None) -> list[ResponseEvent]:
        """Add parts; return the events that tell of them.

        Args:
            parts: in order.
            logprobs: those of the tokens that brought them; they go to the first text among the parts, and wait for one
                where there are no parts at all.
        """
        events: list[ResponseEvent] = []
        self._logprobs += logprobs or []
        for part in parts:
            match part:
                case TextPart():
                    self._add_text(part.text, events)
                case ReasoningPart():
                    self._logprobs.clear()
                    self._add_reasoning(part.text, events)
                case ToolCallPart():
                    self._logprobs.clear()
                    self._add_call(part, events)
        return events

    def finish(self, status: ItemStatus) -> list[ResponseEvent]:
        """Close the last item; an answer without any becomes an empty message.

        Args:
            status: the last item's.
        """
        events: list[ResponseEvent] = []
        if not self._told:
            self._open_item(ToldMessage(self._new_id("msg"), 0), events)
            self._append(self._blanks, self._take_logprobs(), events)
        elif isinstance(self._open, ToldMessage):
            self._append("", self._take_logprobs(), events)
        self._close(status, events)
        return events

    def cut(self) -> list[ResponseEvent]:
        """Close the last item where a failure ended it; return the events that say so."""
        events: list[ResponseEvent] = []
        self._close("incomplete", events)
        return events

    def told(self, after: int, limit: int) -> list[ResponseEvent]:
        """Return the events so far that follow the one of number `after`, the first `limit` of them or fewer."""
        events: list[ResponseEvent] = []
        for item in self._told:
            events += item.told(after, limit - len(events))
            if len(events) >= limit:
                break
        return events[:limit]

    @property
    def _open(self) -> ToldItem | None:
        return self._told[-1] if self._told and self._told[-1].item is None else None

    def _take_logprobs(self) -> list[ChatTokenLogprob]:
        logprobs, self._logprobs = self._logprobs, []
        return logprobs

    def _add_text(self, text: str, events: list[ResponseEvent]) -> None:
        if not isinstance(self._open, ToldMessage):
            self._blanks += text
            if not self._blanks.strip():
                return
            text, self._blanks = self._blanks, ""
            self._close("completed", events)
            self._open_item(ToldMessage(self._new_id("msg"), len(self._told)), events)
        self._append(text, self._take_logprobs(), events)

    def _add_reasoning(self, text: str, events: list[ResponseEvent]) -> None:
        if not text:
            return
        if not isinstance(self._open, ToldReasoning):
            self._close("completed", events)
            self._open_item(ToldReasoning(self._new_id("rs"), len(self._told)), events)
        self._append(text, [], events)

    def _add_call(self, part: ToolCallPart, events: list[ResponseEvent]) -> None:
        now_open = self._open
        if not isinstance(now_open, ToldCall) or now_open.call_index != part.index:
            self._close("completed", events)
            self._blanks = ""
            call = ToldCall(
                self._new_id("fc"), len(self._told), part.index, part.id or self._new_id("call"), part.name or ""
            )
            self._open_item(call, events)
        self._append(part.arguments, [], events)

    def _open_item(self, item: ToldItem, events: list[ResponseEvent]) -> None:
        self._told.append(item)
        events.extend(item.begin(self._next_number))

    def _append(self, text: str, logprobs: list[ChatTokenLogprob], events: list[ResponseEvent]) -> None:
        assert self._open is not None
        if text or logprobs:
            events.append(self._open.add(text, logprobs, self._next_number))

    def _close(self, status: ItemStatus, events: list[ResponseEvent]) -> None:
        if self._open is not None:
            events.extend(self._open.close(status, self._next_number))
