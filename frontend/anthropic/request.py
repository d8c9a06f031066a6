"""The bodies of POST /v1/messages and /v1/messages/count_tokens. None always means "not given"."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from ..openai.bodies.schema import MAX_MESSAGES, MAX_PARTS, Int64, ShortText

MAX_TOOLS = 1024
Block = dict[str, Any]  # Any: checked where it is translated, which names the place and the type of one not served


class _Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Shared struct options; not a place for fields."""


class InputMessage(_Body, kw_only=True):
    """One turn; a last one of the assistant's is gone on with."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(max_length=MAX_PARTS)]


class InputTool(_Body, kw_only=True):
    """A tool that the model may call."""

    name: ShortText
    type: ShortText | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None  # Any: a schema is whatever JSON its author wrote
    strict: bool | None = None
    eager_input_streaming: bool | None = None  # says nothing here: arguments are streamed as they come
    cache_control: dict[str, Any] | None = None  # Any: says nothing here, prefixes are always cached


class ToolChoice(_Body, kw_only=True):
    """Which tools the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: ShortText | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(_Body, kw_only=True):
    """Whether to think; how long is the model's own affair."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Int64 | None = None
    display: str | None = None


class OutputFormat(_Body, kw_only=True):
    """What the answer must look like."""

    type: Literal["json_schema"]
    schema: dict[str, Any]  # Any: as above


class OutputConfig(_Body, kw_only=True):
    """How the answer is to be."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(_Body, kw_only=True):
    """POST /v1/messages/count_tokens, and the start of POST /v1/messages."""

    unsupported_fields: ClassVar[tuple[str, ...]] = ("container", "context_management", "mcp_servers")

    model: ShortText | None = None
    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | Annotated[list[Block], Meta(max_length=MAX_PARTS)] | None = None
    tools: Annotated[list[InputTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # Any: variables of the template
    cache_control: dict[str, Any] | None = None  # Any: says nothing here

    # Accepted only where they ask for nothing; Any, because other shapes are refused by name.
    container: Any = None
    context_management: Any = None
    mcp_servers: Any = None


class MessageRequest(CountTokensRequest, kw_only=True):
    """POST /v1/messages."""

    max_tokens: Int64
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: Int64 | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    timeout: float | None = None  # seconds from the request's arrival
    priority: Int64 | None = None
    cache_salt: ShortText | None = None

    # Informational: they change nothing here.
    metadata: dict[str, Any] | None = None  # Any: the client's own values, which nothing reads
    service_tier: str | None = None
    inference_geo: str | None = None
