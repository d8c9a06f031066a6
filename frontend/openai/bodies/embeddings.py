"""The bodies of /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .responses import Usage
from .schema import Int64, ShortText


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embeddings. What OpenAI does not know has vLLM's names; `pooling` is ours."""

    # A text, token ids, or a list of either; msgspec can't tell kinds of lists apart, `split_prompts` does.
    input: str | list[str | Int64 | list[Int64]]
    model: ShortText | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Int64 | None = None  # only the model's own: a decoder's vector can't be cut
    user: str | None = None

    pooling: Literal["last", "mean"] | None = None
    normalize: bool | None = None
    use_activation: bool | None = None  # vLLM's newer name of it
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    priority: Int64 | None = None
    cache_salt: ShortText | None = None
    request_id: ShortText | None = None
    timeout: float | None = None  # seconds from the request's arrival


class EmbeddingData(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One input's vector; as base64: float32 numbers, little-endian."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingResponse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The vectors of all inputs, in their order."""

    id: str
    created: int
    model: str
    data: list[EmbeddingData]
    usage: Usage
    object: Literal["list"] = "list"
