"""The events of a streamed response, numbered in the order in which they are sent."""

from __future__ import annotations

import msgspec

from ..bodies.responses import ChatTokenLogprob
from .answer import ContentPart, OutputItem, ResponseObject


class _Event(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="type"):
    """What all events have; their `type` is the tag."""

    sequence_number: int


class ResponseCreated(_Event, frozen=True, kw_only=True, tag="response.created"):
    """The response was accepted."""

    response: ResponseObject


class ResponseInProgress(_Event, frozen=True, kw_only=True, tag="response.in_progress"):
    """The engine is at it."""

    response: ResponseObject


class ResponseCompleted(_Event, frozen=True, kw_only=True, tag="response.completed"):
    """The whole response; nothing follows."""

    response: ResponseObject


class ResponseIncomplete(_Event, frozen=True, kw_only=True, tag="response.incomplete"):
    """The response as far as its tokens went; nothing follows."""

    response: ResponseObject


class ResponseFailed(_Event, frozen=True, kw_only=True, tag="response.failed"):
    """Why the response failed; nothing follows."""

    response: ResponseObject


class OutputItemAdded(_Event, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item begins, still empty."""

    output_index: int
    item: OutputItem


class OutputItemDone(_Event, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item is whole."""

    output_index: int
    item: OutputItem


class ContentPartAdded(_Event, frozen=True, kw_only=True, tag="response.content_part.added"):
    """The text of an item begins."""

    item_id: str
    output_index: int
    content_index: int = 0
    part: ContentPart


class ContentPartDone(_Event, frozen=True, kw_only=True, tag="response.content_part.done"):
    """The text of an item is whole."""

    item_id: str
    output_index: int
    content_index: int = 0
    part: ContentPart


class OutputTextDelta(_Event, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """A piece of a message."""

    item_id: str
    output_index: int
    content_index: int = 0
    delta: str
    logprobs: list[ChatTokenLogprob] = []


class OutputTextDone(_Event, frozen=True, kw_only=True, tag="response.output_text.done"):
    """A message's text."""

    item_id: str
    output_index: int
    content_index: int = 0
    text: str
    logprobs: list[ChatTokenLogprob] = []


class ReasoningTextDelta(_Event, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """A piece of a thought."""

    item_id: str
    output_index: int
    content_index: int = 0
    delta: str


class ReasoningTextDone(_Event, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """A thought's text."""

    item_id: str
    output_index: int
    content_index: int = 0
    text: str


class FunctionCallArgumentsDelta(_Event, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """A piece of a call's arguments."""

    item_id: str
    output_index: int
    delta: str


class FunctionCallArgumentsDone(_Event, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """A call's arguments."""

    item_id: str
    output_index: int
    name: str
    arguments: str


class ResponseError(_Event, frozen=True, kw_only=True, tag="error"):
    """Why events that were asked for again can't be told any further; nothing follows."""

    code: str | None
    message: str
    param: str | None


ResponseEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | FunctionCallArgumentsDelta
    | FunctionCallArgumentsDone
    | ResponseError
)
