"""Exceptions as HTTP status and OpenAI's error body: `{"error": {"message", "type", "param", "code"}}`.

Clients of the `openai` SDK see the matching class: 400 BadRequestError, 401 AuthenticationError, 404 NotFoundError,
500, 503 and 504 InternalServerError. They retry what may work another time, and what tells them so by a header.
"""

from __future__ import annotations

import logging

import msgspec
from aiohttp import web

from pagewire.ipc.errors import (
    ContextTooLong,
    DeadlineExceeded,
    EngineDead,
    EngineError,
    NotFound,
    Overloaded,
    PagewireError,
    PoisonRequest,
    RequestError,
)

from .scrubbing import scrub

logger = logging.getLogger(__name__)

# An error may quote the request, which may be megabytes.
MAX_MESSAGE_CHARS = 1000
MAX_PARAM_CHARS = 200
RETRY_AFTER_S = 1

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
TIMEOUT_ERROR = "timeout_error"

_encoder = msgspec.json.Encoder()


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """What stands under `error` in every error answer."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON body of every error answer."""

    error: ErrorBody


class ModelNotFound(NotFound):
    """The request names a model that this server doesn't serve."""

    def __init__(self, model: str) -> None:
        super().__init__(f"The model `{model}` does not exist.", param="model")


class UnsupportedMediaType(RequestError):
    """The body isn't declared as JSON. A browser can send other types across sites without asking first."""

    status = 415


class Unauthorized(RequestError):
    """The API key is missing or wrong."""

    status = 401


class BodyTimeout(RequestError):
    """The client took too long to send its body."""

    status = 408


class HeadTimeout(RequestError):
    """The client took too long to send its request's head."""

    status = 408


class UnreadableBody(RequestError):
    """The body can't be put together or decompressed."""


def describe_error(error: Exception) -> tuple[int, ErrorBody]:
    """Return the HTTP status and the body's content for an exception.

    The message of a client's fault quotes what the client sent. Those of the server's faults are scrubbed of addresses
    and paths, and unknown exceptions give away nothing.
    """
    match error:
        case PagewireError():
            status = _status(error)
            message = error.message if isinstance(error, RequestError) else scrub(error.message)
            return status, ErrorBody(
                message=message[:MAX_MESSAGE_CHARS],
                type=_error_type(status),
                param=error.param[:MAX_PARAM_CHARS] if error.param else None,
                code=_error_code(error),
            )
        case web.HTTPException():
            return error.status, ErrorBody(
                message=_http_message(error), type=_error_type(error.status), code=_HTTP_CODES.get(error.status)
            )
        case _:
            return 500, ErrorBody(
                message="Internal server error; the server's log has the cause.",
                type=SERVER_ERROR,
                code="internal_error",
            )


def log_error(error: Exception, request_id: str) -> None:
    """Log what is the server's fault; a traceback only where the cause is unknown."""
    if isinstance(error, RequestError | web.HTTPException):
        return
    if isinstance(error, PagewireError):
        logger.error("request_id=%s failed: %s", request_id, error.message)
    else:
        logger.error("request_id=%s failed unexpectedly", request_id, exc_info=error)


def error_response(error: Exception) -> web.Response:
    """Return the HTTP answer for an exception that ended a handler before its headers went out."""
    status, body = describe_error(error)
    headers = {}
    if status == 503:
        headers["Retry-After"] = str(error.retry_after_s if isinstance(error, Overloaded) else RETRY_AFTER_S)
    if isinstance(error, DeadlineExceeded | PoisonRequest):
        # The openai SDK sends a 5xx again, twice, unless told otherwise: the same would come of it.
        headers["x-should-retry"] = "false"
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, web.HTTPMethodNotAllowed):
        headers["Allow"] = ",".join(sorted(error.allowed_methods))
    response = web.Response(
        status=status, body=encode_error(body), content_type="application/json", charset="utf-8", headers=headers
    )
    if isinstance(error, BodyTimeout | UnreadableBody):
        response.force_close()  # where the next request begins, nobody knows
    return response


def encode_error(body: ErrorBody) -> bytes:
    """Return the JSON of an error; lone surrogates, which have no UTF-8, become question marks."""
    try:
        return _encoder.encode(ErrorResponse(error=body))
    except UnicodeEncodeError:
        message = body.message.encode("utf-8", "replace").decode("utf-8")
        return _encoder.encode(ErrorResponse(error=msgspec.structs.replace(body, message=message, param=None)))


def _status(error: PagewireError) -> int:
    match error:
        case EngineDead():
            return 503  # nothing is wrong with the request: another server, or this one later, takes it
        case RequestError() | EngineError():
            return error.status
        case _:
            return 500


def _error_type(status: int) -> str:
    if status == 503:
        return "service_unavailable_error"
    if status == 504:
        return TIMEOUT_ERROR
    return SERVER_ERROR if status >= 500 else INVALID_REQUEST


def _error_code(error: PagewireError) -> str | None:
    match error:
        case ContextTooLong():
            return "context_length_exceeded"
        case ModelNotFound():
            return "model_not_found"
        case NotFound():
            return "not_found"
        case Unauthorized():
            return "invalid_api_key"
        case Overloaded():
            return "overloaded"
        case DeadlineExceeded():
            return "deadline_exceeded"
        case EngineDead():
            return "engine_dead"
        case PoisonRequest():
            return "poison_request"
        case RequestError():
            return None
        case _:
            return "engine_error"


_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}


def _http_message(error: web.HTTPException) -> str:
    match error:
        case web.HTTPNotFound():
            return "There is no such path on this server."
        case web.HTTPMethodNotAllowed():
            return f"This path doesn't take {error.method[:20]}; it takes {', '.join(sorted(error.allowed_methods))}."
        case web.HTTPRequestEntityTooLarge():
            return "The request body is too large; send a shorter prompt or fewer prompts a request."
        case web.HTTPExpectationFailed():
            return "The only Expect header that is met is 100-continue; leave it out."
        case _:
            return error.reason
