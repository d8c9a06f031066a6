"""What administers a running engine, with vLLM's paths and shapes; served with --enable-admin alone.

POST /sleep, /wake_up, GET /is_sleeping     give all memory of the executors back, and take it again
POST /pause, /resume, GET /is_paused        schedule nothing, and go on
POST /abort_requests                        end requests by their ids
POST /reset_prefix_cache                    forget cached blocks
GET  /server_info                           what is served

Each answers when it has taken effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from pagewire.ipc.errors import InvalidRequest, NotFound
from pagewire.version import __version__

from .bodies.admin import (
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
from .bodies.json_body import JsonBody, json_response
from .serving import MAX_ID_CHARS, SERVING, request_id

IS_ENABLED = web.AppKey("admin_is_enabled", bool)

# How answers are named: an id that a client chose stands behind one of these.
_LABEL_HEADS = ("", "cmpl-", "chatcmpl-", "embd-", "resp_", "msg_")
_MODES = ("abort", "wait", "keep")
_TAGS = ("weights", "kv_cache", "scheduling")
_TRUTHS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


_ABORT_BODY = JsonBody(AbortRequest)


def guarded(handler: Handler) -> Handler:
    """Return a handler that is there with --enable-admin alone."""

    async def guard(request: web.Request) -> web.StreamResponse:
        if not request.app[IS_ENABLED]:
            raise NotFound(
                f"{request.path} is served with --enable-admin alone (or VLLM_SERVER_DEV_MODE=1): whoever may call it "
                "can stop the engine."
            )
        return await handler(request)

    return guard


async def sleep(request: web.Request) -> web.Response:
    """End the executors; requests wait until they are back."""
    _check_names(request, "level", "mode")
    level, mode = _level(request), _mode(request)
    if level == 0:
        await _call(request, "pause", mode, False)
    else:
        await _call(request, "sleep", level, mode)
    return json_response(SleepAnswer(status="sleeping", level=level), request_id(request))


async def wake_up(request: web.Request) -> web.Response:
    """Start executors again, whatever tags are given: they come as a whole."""
    _check_names(request, "tags")
    tags = [tag for value in request.query.getall("tags", []) for tag in value.split(",")]
    for tag in tags:
        if tag not in _TAGS:
            raise InvalidRequest(f"tags must be of {', '.join(_TAGS)}; got {tag!r}.", param="tags")
    await _call(request, "wake_up")
    await _call(request, "resume")
    return json_response(WakeAnswer(status="awake", tags=tags or None), request_id(request))


async def is_sleeping(request: web.Request) -> web.Response:
    """Say whether the engine sleeps."""
    return json_response(SleepState(is_sleeping=await _call(request, "is_sleeping")), request_id(request))


async def pause(request: web.Request) -> web.Response:
    """Schedule nothing; what becomes of running requests says `mode`."""
    _check_names(request, "mode", "clear_cache", "wait_for_inflight_requests")
    mode = _mode(request)
    if _truth(request, "wait_for_inflight_requests", default=False):  # its older name
        mode = "wait"
    await _call(request, "pause", mode, _truth(request, "clear_cache", default=True))
    return json_response(PauseAnswer(status="paused"), request_id(request))


async def resume(request: web.Request) -> web.Response:
    """Go on."""
    await _call(request, "resume")
    return json_response(PauseAnswer(status="resumed"), request_id(request))


async def is_paused(request: web.Request) -> web.Response:
    """Say whether nothing is scheduled."""
    return json_response(PauseState(is_paused=await _call(request, "is_paused")), request_id(request))


async def abort_requests(request: web.Request) -> web.Response:
    """End requests; their answers finish with the reason abort."""
    body = await _ABORT_BODY.read(request)
    labels = [head + each[:MAX_ID_CHARS] for each in body.request_ids for head in _LABEL_HEADS]
    count = await _call(request, "abort_requests", *labels)
    return json_response(AbortAnswer(status="aborted", aborted=count), request_id(request))


async def reset_prefix_cache(request: web.Request) -> web.Response:
    """Forget cached blocks."""
    _check_names(request, "reset_running_requests", "reset_external")
    arguments = [_truth(request, name, default=False) for name in ("reset_running_requests", "reset_external")]
    return json_response(
        ResetAnswer(success=await _call(request, "reset_prefix_cache", *arguments)), request_id(request)
    )


async def server_info(request: web.Request) -> web.Response:
    """Describe what is served."""
    _check_names(request, "config_format")
    facts: dict[str, Any] = msgspec.to_builtins(request.app[SERVING].info)
    given = request.query.get("config_format", "text")
    if given not in ("text", "json"):
        raise InvalidRequest(f"config_format must be text or json; got {given!r}.", param="config_format")
    config: dict[str, Any] | str = facts
    if given == "text":
        config = ", ".join(f"{name}={value!r}" for name, value in facts.items())
    return json_response(ServerInfo(version=__version__, vllm_config=config), request_id(request))


async def _call(request: web.Request, method: str, *args: int | str | bool) -> Any:  # Any: each utility documents it
    # However long it takes until what runs has ended, or executors have loaded.
    return await request.app[SERVING].generator.client.call_utility(method, *args, timeout_s=None)


def _check_names(request: web.Request, *names: str) -> None:
    for name in request.query:
        if name not in names:
            raise InvalidRequest(f"{request.path} takes {_either(names)}; it has no {name}.", param=name)


def _mode(request: web.Request) -> str:
    mode = request.query.get("mode", "abort")
    if mode not in _MODES:
        raise InvalidRequest(f"mode must be {_either(_MODES)}; got {mode!r}.", param="mode")
    return mode


def _level(request: web.Request) -> int:
    level = request.query.get("level", "1")
    if level not in ("0", "1", "2"):
        raise InvalidRequest(f"level must be 0 (pause), 1 or 2; got {level!r}.", param="level")
    return int(level)


def _truth(request: web.Request, name: str, *, default: bool) -> bool:
    text = request.query.get(name)
    if text is None:
        return default
    if text.lower() not in _TRUTHS:
        raise InvalidRequest(f"{name} must be true or false; got {text!r}.", param=name)
    return _TRUTHS[text.lower()]


def _either(names: Sequence[str]) -> str:
    return " or ".join(names)
