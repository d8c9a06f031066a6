"""What /v1/messages answers with: bodies and events, as Anthropic's clients read them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

# pause_turn: the server ended the turn before its end; sent back, it is gone on with.
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Shared struct options; not a place for fields."""


class _Typed(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="type"):
    """The same for what has a `type`, which is the tag."""


# ---- blocks


class TextBlock(_Typed, frozen=True, kw_only=True, tag="text"):
    """What the model says."""

    text: str
    citations: None = None


class ThinkingBlock(_Typed, frozen=True, kw_only=True, tag="thinking"):
    """What the model thinks, as it is; nothing signs it."""

    thinking: str
    signature: str = ""


class ToolUseBlock(_Typed, frozen=True, kw_only=True, tag="tool_use"):
    """A tool that the model calls. Arguments that a limit cut off are empty; `stop_reason` says so."""

    id: str
    name: str
    input: dict[str, Any]  # Any: whatever JSON the model wrote


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock

# ---- messages


class MessageUsage(_Part, frozen=True, kw_only=True):
    """What a message cost; `input_tokens` are those that did not come from the prefix cache."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class MessageObject(_Typed, frozen=True, kw_only=True, tag="message"):
    """POST /v1/messages, not streamed; the first event of a stream, still empty."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class TokenCount(_Part, frozen=True, kw_only=True):
    """POST /v1/messages/count_tokens."""

    input_tokens: int


# ---- events


class MessageStart(_Typed, frozen=True, kw_only=True, tag="message_start"):
    """The message begins."""

    message: MessageObject


class Ping(_Typed, frozen=True, kw_only=True, tag="ping"):
    """The connection lives."""


class ContentBlockStart(_Typed, frozen=True, kw_only=True, tag="content_block_start"):
    """A block begins, still empty."""

    index: int
    content_block: ContentBlock


class TextDelta(_Typed, frozen=True, kw_only=True, tag="text_delta"):
    """A piece of text."""

    text: str


class ThinkingDelta(_Typed, frozen=True, kw_only=True, tag="thinking_delta"):
    """A piece of a thought."""

    thinking: str


class InputJsonDelta(_Typed, frozen=True, kw_only=True, tag="input_json_delta"):
    """A piece of a call's arguments."""

    partial_json: str


class ContentBlockDelta(_Typed, frozen=True, kw_only=True, tag="content_block_delta"):
    """What is added to a block."""

    index: int
    delta: TextDelta | ThinkingDelta | InputJsonDelta


class ContentBlockStop(_Typed, frozen=True, kw_only=True, tag="content_block_stop"):
    """A block is whole."""

    index: int


class MessageEnd(_Part, frozen=True, kw_only=True):
    """Why a message ended."""

    stop_reason: StopReason
    stop_sequence: str | None = None


class MessageDelta(_Typed, frozen=True, kw_only=True, tag="message_delta"):
    """What is known of a message at its end."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(_Typed, frozen=True, kw_only=True, tag="message_stop"):
    """Nothing follows."""


class AnthropicErrorBody(_Part, frozen=True, kw_only=True):
    """What went wrong."""

    type: str
    message: str


class AnthropicError(_Typed, frozen=True, kw_only=True, tag="error"):
    """Every error answer, and the event that ends a stream which failed."""

    error: AnthropicErrorBody
    request_id: str


MessageEvent = (
    MessageStart
    | Ping
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | AnthropicError
)
