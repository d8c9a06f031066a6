"""The request bodies: typed, bounded, and strict about unknown fields.

None always means "not given". Fields that can't be served yet are declared with the values that ask for nothing; any
other value is refused by name (see `refuse_unsupported`).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Protocol

import msgspec
from msgspec import Meta

from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.sampling_params import INT64_MAX, INT64_MIN, MAX_BAD_WORD_CHARS, MAX_BAD_WORDS
from pagewire.ipc.structured_outputs import StructuredOutputs

from ...templates.limits import MAX_BROUGHT_TEMPLATE_CHARS
from .tool_bodies import (
    MAX_TOOLS,
    CalledFunction,
    FunctionBody,
    FunctionName,
    ResponseFormat,
    ToolBody,
    ToolCallBody,
    ToolChoiceBody,
)

MAX_PROMPTS = 1024
MAX_MESSAGES = 10_000
MAX_PARTS = 1000

Int64 = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]  # what the wire to the engine carries
ShortText = Annotated[str, Meta(max_length=512)]
BadWord = Annotated[str, Meta(max_length=MAX_BAD_WORD_CHARS)]
BroughtTemplate = Annotated[str, Meta(max_length=MAX_BROUGHT_TEMPLATE_CHARS)]
TokenIds = Annotated[list[Int64], Meta(max_length=4096)]

# Values besides null that ask for nothing, by the name of the field that isn't served.
NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    # What coding assistants send with every request: to clear nothing.
    "context_management": ({"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    "modalities": (["text"],),
    "store": (False,),
    "suffix": ("",),
    "verbosity": ("medium",),
}

# What to send instead of a field that isn't served.
_INSTEAD = {
    "kv_transfer_params": "keys and values stay where they were computed",
    "logits_processors": "send logit_bias, allowed_token_ids or bad_words: no code of others runs in the engine",
    "logprob_token_ids": "send logprobs: -1 and choose among all tokens",
    "modalities": "answers are text",
    "prompt_embeds": "send the prompt as a text or as token ids",
    "repetition_detection": "send repetition_penalty or frequency_penalty against loops, and max_tokens to end them",
    "store": "chat completions are not kept; /v1/responses keeps its answers",
    "suffix": "the models that are served continue a text and don't fill one in; write what such a model wants "
    "(<fim_prefix> and the like) into the prompt",
    "thinking_token_budget": "send max_completion_tokens, which counts thoughts as well",
    "web_search_options": "send a tool that searches, and answer its calls",
}


class _Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Shared struct options; not a place for fields."""


class StreamOptions(_Body, kw_only=True):
    """What a stream brings besides its tokens."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # padding against traffic analysis: none is sent, which "false" asks for


class GenerationRequest(_Body, kw_only=True):
    """What /v1/completions and /v1/chat/completions share."""

    unsupported_fields: ClassVar[tuple[str, ...]] = ()

    model: ShortText | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    n: Int64 | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[Int64, float], Meta(max_length=4096)] | None = None
    allowed_token_ids: Annotated[list[Int64], Meta(max_length=1_000_000)] | None = None
    bad_words: Annotated[list[BadWord], Meta(max_length=MAX_BAD_WORDS)] | None = None
    min_tokens: Int64 | None = None
    max_tokens: Int64 | None = None
    stop: str | Annotated[list[str], Meta(max_length=1000)] | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    prompt_logprobs: Int64 | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Int64 | None = None
    truncation_side: Literal["left", "right"] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_prompt_text: bool | None = None
    stream_interval: Annotated[int, Meta(ge=1, le=2**31)] | None = None  # tokens of an answer per event of its stream
    timeout: float | None = None  # seconds from the request's arrival
    priority: Int64 | None = None
    cache_salt: ShortText | None = None
    request_id: ShortText | None = None

    use_beam_search: bool | None = None  # of width n
    length_penalty: Annotated[float, Meta(ge=-10, le=10)] | None = None
    early_stopping: bool | None = None

    # What the answer must look like; guided_* are older names of structured_outputs.
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | bool | None = None  # Any: a JSON schema
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None
    guided_whitespace_pattern: str | None = None

    # Informational: they change nothing here, nor elsewhere.
    user: str | None = None
    metadata: dict[str, Any] | None = None  # Any: the client's own values, which nothing reads
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    session_id: str | None = None

    # Accepted only at the values that ask for nothing; Any, because other shapes are refused by name.
    kv_transfer_params: Any = None
    logits_processors: Any = None
    logprob_token_ids: Any = None
    repetition_detection: Any = None
    store: Any = None
    thinking_token_budget: Any = None
    vllm_xargs: Any = None


_UNSUPPORTED_BOTH = (
    "kv_transfer_params", "logits_processors", "logprob_token_ids",
    "repetition_detection", "store", "thinking_token_budget", "vllm_xargs",
)  # fmt: skip


class CompletionRequest(GenerationRequest, kw_only=True):
    """POST /v1/completions."""

    unsupported_fields: ClassVar[tuple[str, ...]] = (*_UNSUPPORTED_BOTH, "prompt_embeds", "suffix")

    # A text, token ids, or a list of either; msgspec can't tell kinds of lists apart, `split_prompts` does.
    prompt: str | list[str | Int64 | list[Int64]] | None = None
    echo: bool | None = None
    logprobs: Int64 | None = None

    best_of: Int64 | None = None

    prompt_embeds: Any = None
    suffix: Any = None


class ChatMessage(_Body, kw_only=True):
    """A message as clients send it, answers of this server among them."""

    role: ShortText
    # Any: parts are checked where they are rendered, which names the place and the type of one that is not text.
    content: str | Annotated[list[str | dict[str, Any]], Meta(max_length=MAX_PARTS)] | None = None
    name: ShortText | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    # What an SDK's message object writes back; only their empty values are served (Any: refused by name otherwise).
    refusal: Any = None
    annotations: Any = None
    audio: Any = None
    function_call: CalledFunction | None = None  # an older form of tool_calls
    tool_calls: Annotated[list[ToolCallBody], Meta(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    parsed: Any = None  # what an SDK made of the content, and writes back beside it


class ChatRequest(GenerationRequest, kw_only=True):
    """POST /v1/chat/completions."""

    unsupported_fields: ClassVar[tuple[str, ...]] = (
        *_UNSUPPORTED_BOTH, "audio", "media_io_kwargs", "mm_processor_kwargs",
        "modalities", "prediction", "verbosity", "web_search_options",
    )  # fmt: skip

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    logprobs: bool | None = None
    top_logprobs: Int64 | None = None
    max_completion_tokens: Int64 | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: BroughtTemplate | None = None  # only with --trust-request-chat-template
    chat_template_kwargs: dict[str, Any] | None = None  # Any: variables of the template
    documents: list[dict[str, Any]] | None = None  # Any: for templates that know retrieval
    tools: Annotated[list[ToolBody], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | ToolChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ShortText | None = None  # for the template
    echo: bool | None = None  # a last message of the assistant's is repeated in front
    include_reasoning: bool | None = None

    # Older forms of tools and tool_choice; the answer is in kind.
    functions: Annotated[list[FunctionBody], Meta(max_length=MAX_TOOLS)] | None = None
    function_call: str | FunctionName | None = None

    audio: Any = None
    media_io_kwargs: Any = None
    mm_processor_kwargs: Any = None
    modalities: Any = None
    prediction: Any = None
    verbosity: Any = None
    web_search_options: Any = None


class TokenizeRequest(_Body, kw_only=True):
    """POST /tokenize: a text, or messages as the chat endpoint would render them."""

    model: ShortText | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: BroughtTemplate | None = None  # only with --trust-request-chat-template
    chat_template_kwargs: dict[str, Any] | None = None  # Any: variables of the template
    documents: list[dict[str, Any]] | None = None  # Any: as in ChatRequest
    tools: Annotated[list[ToolBody], Meta(max_length=MAX_TOOLS)] | None = None


class DetokenizeRequest(_Body, kw_only=True):
    """POST /detokenize."""

    model: ShortText | None = None
    tokens: list[Int64]


class HasUnsupportedFields(Protocol):
    """A body with fields that are declared to be refused by name."""

    unsupported_fields: ClassVar[tuple[str, ...]]


def refuse_unsupported(request: HasUnsupportedFields) -> None:
    """Refuse every field whose value asks for something that this server doesn't do yet.

    Raises:
        InvalidRequest: naming the first such field.
    """
    for name in request.unsupported_fields:
        value = getattr(request, name)
        if value is not None and not _is_neutral(name, value):
            advice = _INSTEAD.get(name, "leave it out rather than have it ignored")
            raise InvalidRequest(f"{name} is not supported by this server (yet); {advice}.", param=name)


def _is_neutral(name: str, value: object) -> bool:
    # `is` of types: True == 1, and {"best_of": true} asks for nothing sensible.
    return any(
        value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
        for neutral in NEUTRAL_VALUES.get(name, ())
    )
