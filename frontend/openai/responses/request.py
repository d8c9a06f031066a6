"""The body of POST /v1/responses: typed, bounded, and strict about unknown fields. None always means "not given"."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from ..bodies.schema import MAX_MESSAGES, Int64, ShortText, TokenIds

MAX_TOOLS = 1024
MAX_METADATA = 16


class _Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Shared struct options; not a place for fields."""


class TextFormat(_Body, kw_only=True):
    """What the answer's text must look like; the last four fields are json_schema's."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: ShortText | None = None
    schema: dict[str, Any] | None = None  # Any: a schema is whatever JSON its author wrote
    strict: bool | None = None
    description: str | None = None


class TextConfig(_Body, kw_only=True):
    """How the text is to be."""

    format: TextFormat = msgspec.field(default_factory=TextFormat)
    verbosity: Literal["medium"] | None = None


class ReasoningConfig(_Body, kw_only=True):
    """How much to think. Thoughts are given as they are, so that `summary` makes no difference."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None  # its older name


class ResponseStreamOptions(_Body, kw_only=True):
    """What a stream brings besides its events: no padding against traffic analysis, which "false" asks for."""

    include_obfuscation: Literal[False] | None = None


class ResponseRequest(_Body, kw_only=True):
    """POST /v1/responses."""

    unsupported_fields: ClassVar[tuple[str, ...]] = (
        "access_programs", "background_options", "context_management", "conversation", "image", "max_tool_calls",
        "moderation", "prompt", "vllm_xargs",
    )  # fmt: skip

    model: ShortText | None = None
    # Any: items are checked where they are translated, which names the place and the type of one that isn't served.
    input: str | Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    previous_response_id: ShortText | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None

    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None  # Any: as the input
    tool_choice: str | dict[str, Any] | None = None  # Any: likewise
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None

    max_output_tokens: Int64 | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Int64 | None = None
    truncation: Literal["disabled"] | None = None

    # vLLM's additional fields, as on the other endpoints.
    top_k: Int64 | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: str | Annotated[list[str], Meta(max_length=1000)] | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # Any: variables of the template
    timeout: float | None = None  # seconds from the request's arrival
    priority: Int64 | None = None
    cache_salt: ShortText | None = None

    # Informational: they change nothing here but what is written back.
    user: str | None = None
    metadata: Annotated[dict[str, Any], Meta(max_length=MAX_METADATA)] | None = None  # Any: the client's own values
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None  # Any: likewise

    # Accepted only where they ask for nothing; Any, because other shapes are refused by name.
    access_programs: Any = None
    background_options: Any = None
    context_management: Any = None
    conversation: Any = None
    image: Any = None
    max_tool_calls: Any = None
    moderation: Any = None
    prompt: Any = None
    vllm_xargs: Any = None
