"""The response bodies and stream chunks, as OpenAI's clients and vLLM's read them.

None is written as null; UNSET leaves a field out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

SYSTEM_FINGERPRINT = "pagewire"


class _Part(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Shared struct options; not a place for fields."""


class PromptTokensDetails(_Part, frozen=True, kw_only=True):
    """How many prompt tokens came from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(_Part, frozen=True, kw_only=True):
    """Which tokens of the output were reasoning, where a model reasons; what became of those that were guessed ahead.

    Those that were rejected are in no other figure.
    """

    reasoning_tokens: int | UnsetType = UNSET
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class Usage(_Part, frozen=True, kw_only=True):
    """What a request cost. Prompt tokens count once, whatever n is. Details of the output: where there are any."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


def add_usages(usages: Sequence[Usage]) -> Usage:
    """Return what several requests cost together."""
    details = [usage.completion_tokens_details for usage in usages]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        total_tokens=sum(usage.total_tokens for usage in usages),
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(usage.prompt_tokens_details.cached_tokens for usage in usages)
        ),
        completion_tokens_details=UNSET
        if all(each is UNSET for each in details)
        else CompletionTokensDetails(
            **{name: _sum_of_known(name, details) for name in CompletionTokensDetails.__struct_fields__}
        ),
    )


def _sum_of_known(name: str, details: Iterable[CompletionTokensDetails | UnsetType]) -> int | UnsetType:
    counts = [count for each in details if isinstance(count := getattr(each, name, UNSET), int)]
    return sum(counts) if counts else UNSET


# ---- logprobs


class TopLogprob(_Part, frozen=True, kw_only=True):
    """An alternative at a position. `bytes` are the token's exact ones; null for control tokens, which have no text."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(_Part, frozen=True, kw_only=True):
    """A drawn token and its alternatives, the most likely first."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Part, frozen=True, kw_only=True):
    """The chat endpoint's logprobs."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionLogprobs(_Part, frozen=True, kw_only=True):
    """The completions endpoint's logprobs: parallel lists; the tokens join to the choice's text."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(_Part, frozen=True, kw_only=True):
    """A prompt token, or an alternative at its position."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # token id -> entry; null for the first token


# ---- chat


class AnswerFunction(_Part, frozen=True, kw_only=True):
    """The function that a call asks for; `arguments` is JSON, as far as the model kept to it."""

    name: str
    arguments: str


class AnswerToolCall(_Part, frozen=True, kw_only=True):
    """A call that the model asks the client to make."""

    id: str
    type: Literal["function"] = "function"
    function: AnswerFunction


class AnswerMessage(_Part, frozen=True, kw_only=True):
    """The answer of a chat choice. The reasoning is there by both names that clients read."""

    role: str = "assistant"
    content: str | None
    refusal: None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[AnswerToolCall] | UnsetType = UNSET
    function_call: AnswerFunction | UnsetType = UNSET  # of who asked with `functions`


class ChatChoice(_Part, frozen=True, kw_only=True):
    """One of n answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatResponse(_Part, frozen=True, kw_only=True):
    """POST /v1/chat/completions, not streamed."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: Literal["default"] | None = None
    system_fingerprint: str = SYSTEM_FINGERPRINT
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET


class FunctionDelta(_Part, frozen=True, kw_only=True):
    """What a chunk adds to a call: the name comes first and whole, the arguments piece by piece."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(_Part, frozen=True, kw_only=True):
    """What a chunk adds to the call of this index; `id`, `type` and the name come once, with its first chunk."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(_Part, frozen=True, kw_only=True):
    """What a chunk adds to the answer."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChatChunkChoice(_Part, frozen=True, kw_only=True):
    """A chunk's share of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(_Part, frozen=True, kw_only=True):
    """An event of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str = SYSTEM_FINGERPRINT
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET


# ---- completions


class CompletionChoice(_Part, frozen=True, kw_only=True):
    """One answer, or a chunk's share of it; a choice's index is prompt index * n + child."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class CompletionResponse(_Part, frozen=True, kw_only=True):
    """POST /v1/completions, not streamed; an event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str = SYSTEM_FINGERPRINT
    usage: Usage | UnsetType | None = UNSET


# ---- models, tokens


class ModelPermission(_Part, frozen=True, kw_only=True):
    """What may be done with a model, in a shape that old clients look for."""

    id: str
    object: Literal["model_permission"] = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: None = None
    is_blocking: bool = False


class ModelCard(_Part, frozen=True, kw_only=True):
    """One name that this server answers to."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "pagewire"
    root: str
    parent: str | None = None  # the model that an adapter changes
    max_model_len: int
    permission: list[ModelPermission]


class ModelList(_Part, frozen=True, kw_only=True):
    """GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeResponse(_Part, frozen=True, kw_only=True):
    """POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(_Part, frozen=True, kw_only=True):
    """POST /detokenize."""

    prompt: str
