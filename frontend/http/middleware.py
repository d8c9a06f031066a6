"""What surrounds every handler: counting, request ids, errors in the dialect's shape, API keys, admission."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.typedefs import Handler, Middleware

from pagewire.ipc.errors import Overloaded

from ..anthropic.errors import anthropic_error_response
from ..openai.errors import Unauthorized, error_response, log_error
from ..openai.serving import ARRIVAL, REQUEST_ID, SERVING, Serving, is_safe_id
from ..tracing.tracing import HttpExchange, Tracing
from .access.api_keys import ApiKeys
from .access.cors import CrossOrigin, is_preflight

# Answered without an API key: orchestrators have none, and browsers can't send one with a page's address. Everything
# else, unknown paths included, needs it.
OPEN_PATHS = frozenset({"/", "/docs", "/health", "/live", "/ping", "/ui/{name}"})
# For whoever watches the server: not counted among its work, and answered while it drains.
_WATCHED_PATHS = frozenset(
    {"/health", "/live", "/load", "/metrics", "/metrics/", "/ping", "/v1/engine/events", "/version"}
)
# Whose clients read errors in Anthropic's shape.
_ANTHROPIC_PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})
_METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH"})
_LEFT_STATUS = 499  # what proxies call a client that left before its answer


def middlewares(serving: Serving, keys: ApiKeys, cross_origin: CrossOrigin) -> list[Middleware]:
    """Return what surrounds every handler, the outermost first."""
    return [
        _count(serving),
        *([] if serving.tracing is None else [_trace(serving.tracing)]),
        _identify,
        _answer_errors,
        _answer_preflights(cross_origin),
        _authorize(keys),
        _answer_options,
        _admit(serving),
        _answer_expect,
    ]


def add_headers_of_all_answers(app: web.Application, cross_origin: CrossOrigin) -> None:
    """Have every answer, streams and errors among them, say what a browser may do with it."""

    async def add(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(cross_origin.headers(request.headers.get("Origin")))

    app.on_response_prepare.append(add)


async def leave_expect_to_middleware(_request: web.Request) -> None:
    """Say nothing yet to a client that waits before it sends its body: its key and the route come first."""


def _pattern(request: web.Request) -> str:
    """Return the route's pattern, never the path that a client made up."""
    resource = request.match_info.route.resource
    return "none" if resource is None else resource.canonical


def _count(serving: Serving) -> Middleware:
    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[ARRIVAL] = start = serving.clock()
        pattern = _pattern(request)
        if pattern in _WATCHED_PATHS:
            return await handler(request)
        status, response_bytes = _LEFT_STATUS, 0
        try:
            response = await handler(request)
            status, response_bytes = response.status, _num_bytes(response)
        finally:
            serving.metrics.http_done(
                pattern,
                _known_method(request.method),
                status,
                serving.clock() - start,
                request.content_length or 0,
                response_bytes,
            )
        return response

    return count


def _num_bytes(response: web.StreamResponse) -> int:
    """Return the length of a body that was streamed, or that is sent after the handler's end."""
    return response.body_length if response.prepared else response.content_length or 0


def _trace(tracing: Tracing) -> Middleware:
    @web.middleware
    async def trace(request: web.Request, handler: Handler) -> web.StreamResponse:
        pattern = _pattern(request)
        if pattern in _WATCHED_PATHS:
            return await handler(request)
        headers = {name: request.headers[name] for name in ("traceparent", "tracestate") if name in request.headers}
        exchange = HttpExchange(method=_known_method(request.method), route=pattern, headers=headers)
        with tracing.exchange(exchange):
            try:
                response = await handler(request)
                exchange.status = response.status
            finally:
                exchange.request_id = request.get(REQUEST_ID, "")
            return response

    return trace


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
    except Exception as error:  # the one boundary of all handlers: whatever it is, the client gets its dialect's shape
        log_error(error, request[REQUEST_ID])
        if isinstance(error, Overloaded):
            request.app[SERVING].metrics.rejected("overloaded")
        return _error_response(request, error)


def _error_response(request: web.Request, error: Exception) -> web.Response:
    if _pattern(request) in _ANTHROPIC_PATHS:
        return anthropic_error_response(error, request[REQUEST_ID])
    return error_response(error)


def _answer_preflights(cross_origin: CrossOrigin) -> Middleware:
    @web.middleware
    async def answer_preflights(request: web.Request, handler: Handler) -> web.StreamResponse:
        # A browser's preflight brings no key. Without Access-Control headers the browser goes no further.
        methods = _methods_of(request)
        if methods is None or not is_preflight(request):
            return await handler(request)
        return _options(methods, cross_origin.preflight_headers(request.headers, methods))

    return answer_preflights


@web.middleware
async def _answer_options(request: web.Request, handler: Handler) -> web.StreamResponse:
    methods = _methods_of(request)
    if methods is None or request.method != hdrs.METH_OPTIONS:
        return await handler(request)
    return _options(methods, {})


def _options(methods: set[str], headers: Mapping[str, str]) -> web.Response:
    return web.Response(status=204, headers={"Allow": ",".join(sorted(methods)), **headers})


def _methods_of(request: web.Request) -> set[str] | None:
    """Return what a path takes besides the request's own method; None for a path that there is not."""
    if isinstance(request.match_info.http_exception, web.HTTPMethodNotAllowed):
        return request.match_info.http_exception.allowed_methods
    return None


def _authorize(keys: ApiKeys) -> Middleware:
    @web.middleware
    async def authorize(request: web.Request, handler: Handler) -> web.StreamResponse:
        # Decided by the route that will answer, not by the path's text, which proxies and routers may read differently.
        if _pattern(request) not in OPEN_PATHS and not keys.allow(_authorization(request)):
            raise Unauthorized("The API key is missing or wrong; send it as Authorization: Bearer KEY.")
        return await handler(request)

    return authorize


def _authorization(request: web.Request) -> str:
    """Return the Authorization header; Anthropic's clients send their key as x-api-key."""
    given = request.headers.get("Authorization")
    if given is None and "x-api-key" in request.headers:
        return f"Bearer {request.headers['x-api-key']}"
    return given or ""


def _admit(serving: Serving) -> Middleware:
    admission = serving.admission

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        if _pattern(request) in _WATCHED_PATHS:
            return await handler(request)
        if admission.is_closed:
            serving.metrics.rejected("draining")
            response = _error_response(request, admission.refusal())
            response.force_close()  # a client that keeps its connection would never find another server
            return response
        with admission.answering():
            return await handler(request)

    return admit


@web.middleware
async def _answer_expect(request: web.Request, handler: Handler) -> web.StreamResponse:
    expected = request.headers.get("Expect")
    if expected is not None and request.version >= HttpVersion11:
        if expected.lower() != "100-continue":
            raise web.HTTPExpectationFailed
        if request.content_length is not None and request.content_length > request.client_max_size:
            raise web.HTTPRequestEntityTooLarge(max_size=request.client_max_size, actual_size=request.content_length)
        if request.can_read_body:
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # the answer itself has not begun
    return await handler(request)


def _known_method(method: str) -> str:
    return method if method in _METHODS else "other"
