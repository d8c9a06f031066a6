"""The bodies that /v1/responses answers with, as OpenAI's clients read them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..bodies.responses import ChatTokenLogprob, Usage
from .request import ReasoningConfig

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Shared struct options; not a place for fields."""


class _Typed(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="type"):
    """The same for what has a `type`, which is the tag."""


# ---- items of the output


class OutputText(_Typed, frozen=True, kw_only=True, tag="output_text"):
    """The text of a message."""

    text: str
    annotations: list[None] = []
    logprobs: list[ChatTokenLogprob] = []


class OutputMessage(_Typed, frozen=True, kw_only=True, tag="message"):
    """What the model says."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningText(_Typed, frozen=True, kw_only=True, tag="reasoning_text"):
    """What the model thinks, as it is."""

    text: str


class ReasoningItem(_Typed, frozen=True, kw_only=True, tag="reasoning"):
    """What the model thinks before it answers; there are no summaries."""

    id: str
    status: ItemStatus
    summary: list[None] = []
    content: list[ReasoningText]


class FunctionCallItem(_Typed, frozen=True, kw_only=True, tag="function_call"):
    """A tool that the model calls; `arguments` is JSON text."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem
ContentPart = OutputText | ReasoningText


# ---- the response


class InputTokensDetails(_Part, frozen=True, kw_only=True):
    """How many input tokens came from the prefix cache. Entering it costs nothing, so that writes are not counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(_Part, frozen=True, kw_only=True):
    """How many output tokens were reasoning."""

    reasoning_tokens: int


class ResponseUsage(_Part, frozen=True, kw_only=True):
    """What a response cost, in tokens."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFault(_Part, frozen=True, kw_only=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(_Part, frozen=True, kw_only=True):
    """Why a response ended early."""

    reason: Literal["max_output_tokens"]


class ResponseObject(_Part, frozen=True, kw_only=True):
    """POST /v1/responses, not streamed; GET /v1/responses/{id}; what several events bring."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: bool = False
    error: ResponseFault | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: None = None
    metadata: dict[str, Any] = {}  # Any: the client's own values
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: ReasoningConfig
    safety_identifier: str | None = None
    service_tier: Literal["default"] = "default"
    store: bool = True
    temperature: float
    text: dict[str, Any]  # Any: as the client wrote it, which was checked
    tool_choice: str | dict[str, Any]  # Any: likewise
    tools: list[dict[str, Any]]  # Any: likewise
    top_logprobs: int = 0
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None


class DeletedResponse(_Part, frozen=True, kw_only=True):
    """DELETE /v1/responses/{id}."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItemList(_Part, frozen=True, kw_only=True):
    """GET /v1/responses/{id}/input_items."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]  # Any: items as the client wrote them, which were checked
    first_id: str | None
    last_id: str | None
    has_more: bool


def response_usage(usage: Usage) -> ResponseUsage:
    """Return a call's usage in this endpoint's words."""
    details = usage.completion_tokens_details
    reasoning_tokens = getattr(details, "reasoning_tokens", 0) or 0
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.prompt_tokens_details.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning_tokens),
        total_tokens=usage.total_tokens,
    )
