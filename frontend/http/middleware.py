"""What surrounds every handler: counting, request ids, errors in OpenAI's shape, API keys."""

from __future__ import annotations

import hashlib
import hmac
import uuid
from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from ..openai.errors import Unauthorized, error_response, log_error
from ..openai.serving import REQUEST_ID, Serving, is_safe_id

# Answered without an API key: orchestrators have none. Everything else, unknown paths included, needs it.
_OPEN_PATHS = frozenset({"/health", "/live", "/ping"})
_UNCOUNTED_PATHS = frozenset({"/health", "/live", "/ping", "/metrics", "/metrics/", "/version"})
_METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH"})
_LEFT_STATUS = 499  # what proxies call a client that left before its answer


def middlewares(serving: Serving, api_keys: Sequence[str]) -> list[Middleware]:
    """Return what surrounds every handler, the outermost first."""
    return [_count(serving), _identify, _answer_errors, _authorize(api_keys)]


def _count(serving: Serving) -> Middleware:
    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        pattern = "none" if resource is None else resource.canonical
        if pattern in _UNCOUNTED_PATHS:
            return await handler(request)
        start = serving.clock()
        status = _LEFT_STATUS
        try:
            response = await handler(request)
            status = response.status
        finally:
            serving.metrics.http_done(pattern, _known_method(request.method), status, serving.clock() - start)
        return response

    return count


@web.middleware
async def _identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    # A client's id is a label in logs and answers. It is never a key: two requests may bring the same.
    chosen = request.headers.get("X-Request-Id", "")
    request[REQUEST_ID] = chosen if is_safe_id(chosen) else uuid.uuid4().hex
    response = await handler(request)
    if not response.prepared:
        response.headers["X-Request-Id"] = request[REQUEST_ID]
    return response


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ConnectionError:
        raise  # the client is gone: nobody is left to answer
    except Exception as error:  # the one boundary of all handlers: whatever it is, the client gets OpenAI's shape
        log_error(error, request[REQUEST_ID])
        return error_response(error)


def _authorize(api_keys: Sequence[str]) -> Middleware:
    digests = [_digest(key) for key in api_keys]

    @web.middleware
    async def authorize(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method == "OPTIONS" and isinstance(request.match_info.http_exception, web.HTTPMethodNotAllowed):
            # A browser's preflight brings no key. Without Access-Control headers the browser goes no further.
            allowed = ",".join(sorted(request.match_info.http_exception.allowed_methods))
            return web.Response(status=204, headers={"Allow": allowed})
        resource = request.match_info.route.resource
        is_open = resource is not None and resource.canonical in _OPEN_PATHS
        if digests and not is_open and not _has_key(request.headers.get("Authorization", ""), digests):
            raise Unauthorized("The API key is missing or wrong; send it as Authorization: Bearer KEY.")
        return await handler(request)

    return authorize


def _has_key(authorization: str, digests: Sequence[bytes]) -> bool:
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer":
        return False
    given = _digest(key.strip())
    # All keys are compared, each in constant time: the answer's time tells nothing about them.
    matches = [hmac.compare_digest(given, digest) for digest in digests]
    return any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _known_method(method: str) -> str:
    return method if method in _METHODS else "other"
