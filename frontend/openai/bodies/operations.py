"""The routes as clients see them: what each takes and answers. `description` writes OpenAPI of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType

import msgspec

from ...anthropic.answer import AnthropicError, MessageEvent, MessageObject, TokenCount
from ...anthropic.request import CountTokensRequest, MessageRequest
from ..adapters import LoadAdapterRequest, UnloadAdapterRequest
from ..chat_batch import BatchChatRequest
from ..errors import ErrorResponse
from ..responses.answer import DeletedResponse, InputItemList, ResponseObject
from ..responses.events import ResponseEvent
from ..responses.request import ResponseRequest
from .admin import (
    AbortAnswer,
    AbortRequest,
    PauseAnswer,
    PauseState,
    ResetAnswer,
    ServerInfo,
    SleepAnswer,
    SleepState,
    WakeAnswer,
)
from .embeddings import EmbeddingRequest, EmbeddingResponse
from .responses import (
    ChatChunk,
    ChatResponse,
    CompletionResponse,
    DetokenizeResponse,
    ModelCard,
    ModelList,
    TokenizeResponse,
)
from .schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

_TEXT = "text/plain"
_MODES = ("abort", "wait", "keep")
_TRUTHS = ("true", "false")
_ADMIN_ERRORS = (404, 500, 503)


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """GET /version."""

    version: str


class ServerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """GET /load."""

    server_load: int


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One route as clients see it.

    Attributes:
        answer: the JSON body of a 200; a text's media type; None for an empty body.
        event: the JSON of each event, where `stream` is true; a union of structs for named events.
        errors: statuses besides those that every operation, or every one with a body, can have.
        error: the JSON body of all of them.
        is_open: whether it is answered without an API key.
        query: the values that parameters of the query may have, by name; none: any number.
    """

    method: str
    path: str
    summary: str
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | str | None = None
    event: type[msgspec.Struct] | UnionType | None = None
    errors: tuple[int, ...] = ()
    error: type[msgspec.Struct] = ErrorResponse
    is_open: bool = False
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)


OPERATIONS = (
    Operation(
        method="post",
        path="/v1/chat/completions",
        summary="Answer a conversation",
        body=ChatRequest,
        answer=ChatResponse,
        event=ChatChunk,
        errors=(404, 500, 503, 504),
    ),
    Operation(
        method="post",
        path="/v1/chat/completions/batch",
        summary="Answer several conversations",
        body=BatchChatRequest,
        answer=ChatResponse,
        errors=(404, 500, 503, 504),
    ),
    Operation(
        method="post",
        path="/v1/completions",
        summary="Continue one text or several",
        body=CompletionRequest,
        answer=CompletionResponse,
        event=CompletionResponse,
        errors=(404, 500, 503, 504),
    ),
    Operation(
        method="post",
        path="/v1/embeddings",
        summary="Turn texts into vectors",
        body=EmbeddingRequest,
        answer=EmbeddingResponse,
        errors=(404, 500, 503, 504),
    ),
    Operation(
        method="post",
        path="/v1/responses",
        summary="Answer an input, and keep the answer to go on from",
        body=ResponseRequest,
        answer=ResponseObject,
        event=ResponseEvent,
        errors=(404, 500, 503, 504),
    ),
    Operation(
        method="get",
        path="/v1/responses/{response_id}",
        summary="Return a stored response, or its stream",
        answer=ResponseObject,
        event=ResponseEvent,
        query={"stream": _TRUTHS, "starting_after": ()},
        errors=(404, 503),
    ),
    Operation(
        method="delete",
        path="/v1/responses/{response_id}",
        summary="Forget a stored response",
        answer=DeletedResponse,
        errors=(404, 503),
    ),
    Operation(
        method="post",
        path="/v1/responses/{response_id}/cancel",
        summary="End a response that is made in the background",
        answer=ResponseObject,
        errors=(404, 503),
    ),
    Operation(
        method="get",
        path="/v1/responses/{response_id}/input_items",
        summary="List what a stored response answered",
        answer=InputItemList,
        errors=(404, 503),
    ),
    Operation(
        method="post",
        path="/v1/messages",
        summary="Answer a conversation, as Anthropic's API does",
        body=MessageRequest,
        answer=MessageObject,
        event=MessageEvent,
        errors=(404, 500, 503, 504),
        error=AnthropicError,
    ),
    Operation(
        method="post",
        path="/v1/messages/count_tokens",
        summary="Count the tokens of a conversation",
        body=CountTokensRequest,
        answer=TokenCount,
        errors=(404, 500, 503),
        error=AnthropicError,
    ),
    Operation(
        method="post",
        path="/invocations",
        summary="Chat completion, completion or embedding, by the body's shape",
        answer="application/json",
        errors=(404, 413, 415, 500, 503, 504),
    ),
    Operation(method="get", path="/v1/models", summary="List the models", answer=ModelList, errors=(503,)),
    Operation(method="get", path="/v1/models/{model}", summary="Describe a model", answer=ModelCard, errors=(404, 503)),
    Operation(
        method="post",
        path="/v1/load_lora_adapter",
        summary="Load a LoRA adapter, if the server allows it",
        body=LoadAdapterRequest,
        answer=_TEXT,
        errors=(404, 500, 503),
    ),
    Operation(
        method="post",
        path="/v1/unload_lora_adapter",
        summary="Forget a LoRA adapter, if the server allows it",
        body=UnloadAdapterRequest,
        answer=_TEXT,
        errors=(404, 500, 503),
    ),
    Operation(
        method="post",
        path="/sleep",
        summary="End the executors, so that their memory is free; with --enable-admin",
        query={"level": ("0", "1", "2"), "mode": _MODES},
        answer=SleepAnswer,
        errors=_ADMIN_ERRORS,
    ),
    Operation(
        method="post",
        path="/wake_up",
        summary="Start the executors again; with --enable-admin",
        query={"tags": ("weights", "kv_cache", "scheduling")},
        answer=WakeAnswer,
        errors=_ADMIN_ERRORS,
    ),
    Operation(
        method="get",
        path="/is_sleeping",
        summary="Whether the engine sleeps; with --enable-admin",
        answer=SleepState,
        errors=_ADMIN_ERRORS,
    ),
    Operation(
        method="post",
        path="/pause",
        summary="Schedule nothing; with --enable-admin",
        query={"mode": _MODES, "clear_cache": _TRUTHS, "wait_for_inflight_requests": _TRUTHS},
        answer=PauseAnswer,
        errors=_ADMIN_ERRORS,
    ),
    Operation(
        method="post",
        path="/resume",
        summary="Go on after a pause; with --enable-admin",
        answer=PauseAnswer,
        errors=_ADMIN_ERRORS,
    ),
    Operation(
        method="get",
        path="/is_paused",
        summary="Whether nothing is scheduled; with --enable-admin",
        answer=PauseState,
        errors=_ADMIN_ERRORS,
    ),
    Operation(
        method="post",
        path="/abort_requests",
        summary="End requests by their ids; with --enable-admin",
        body=AbortRequest,
        answer=AbortAnswer,
        errors=_ADMIN_ERRORS,
    ),
    Operation(
        method="post",
        path="/reset_prefix_cache",
        summary="Forget cached blocks; with --enable-admin",
        query={"reset_running_requests": _TRUTHS, "reset_external": _TRUTHS},
        answer=ResetAnswer,
        errors=_ADMIN_ERRORS,
    ),
    Operation(
        method="get",
        path="/server_info",
        summary="Describe what is served; with --enable-admin",
        query={"config_format": ("text", "json")},
        answer=ServerInfo,
        errors=_ADMIN_ERRORS,
    ),
    Operation(
        method="post",
        path="/tokenize",
        summary="Turn a text or a conversation into token ids",
        body=TokenizeRequest,
        answer=TokenizeResponse,
        errors=(404, 500, 503),
    ),
    Operation(
        method="post",
        path="/detokenize",
        summary="Turn token ids into text",
        body=DetokenizeRequest,
        answer=DetokenizeResponse,
        errors=(404, 500, 503),
    ),
    Operation(
        method="get", path="/health", summary="Whether requests can be answered now", errors=(503,), is_open=True
    ),
    Operation(method="get", path="/ping", summary="The same as /health", errors=(503,), is_open=True),
    Operation(method="post", path="/ping", summary="The same as /health", errors=(503,), is_open=True),
    Operation(method="get", path="/live", summary="Whether the process runs", is_open=True),
    Operation(method="get", path="/load", summary="How many requests are being answered", answer=ServerLoad),
    Operation(
        method="get",
        path="/v1/engine/events",
        summary="The engine's blocks, requests and figures, once a second, as server-sent events",
        answer="text/event-stream",
        errors=(503,),
    ),
    Operation(method="get", path="/", summary="The web page; off with --no-ui", answer="text/html", is_open=True),
    Operation(
        method="get", path="/ui/{name}", summary="A file of the web page", answer=_TEXT, errors=(404,), is_open=True
    ),
    Operation(method="get", path="/docs", summary="A page that shows /openapi.json", answer="text/html", is_open=True),
    Operation(method="get", path="/version", summary="The server's version", answer=Version),
    Operation(method="get", path="/metrics", summary="Figures for Prometheus", answer=_TEXT),
    Operation(method="get", path="/metrics/", summary="The same as /metrics", answer=_TEXT),
    Operation(method="get", path="/openapi.json", summary="This description", answer="application/json", errors=(503,)),
)
