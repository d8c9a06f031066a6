"""The bodies of what administers a running engine."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from .schema import ShortText


class AbortRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /abort_requests: the ids of answers, or those that clients gave their requests; none: all."""

    request_ids: Annotated[list[ShortText], Meta(max_length=10_000)] = []


class SleepAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """POST /sleep."""

    status: str
    level: int


class WakeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """POST /wake_up."""

    status: str
    tags: list[str] | None


class SleepState(msgspec.Struct, frozen=True, kw_only=True):
    """GET /is_sleeping."""

    is_sleeping: bool


class PauseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """POST /pause and /resume."""

    status: str


class PauseState(msgspec.Struct, frozen=True, kw_only=True):
    """GET /is_paused."""

    is_paused: bool


class AbortAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """POST /abort_requests; `aborted` says how many prompts had not ended."""

    status: str
    aborted: int


class ResetAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """POST /reset_prefix_cache."""

    success: bool


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """GET /server_info; vLLM's name of the member, with this engine's facts in it, as a map or as text."""

    version: str
    vllm_config: dict[str, Any] | str  # Any: each fact has a type of its own
