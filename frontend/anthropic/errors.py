"""Exceptions in Anthropic's shape: `{"type": "error", "error": {"type", "message"}}`."""

from __future__ import annotations

from aiohttp import web

from ..openai.bodies.json_body import encode_json
from ..openai.errors import ErrorBody, describe_error, error_response
from .answer import AnthropicError, AnthropicErrorBody

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def describe_for_anthropic(error: Exception, request_id: str) -> AnthropicError:
    """Return an exception as these clients read it; the field at fault is named in the message."""
    return _translate(*describe_error(error), request_id)


def anthropic_error_response(error: Exception, request_id: str) -> web.Response:
    """Return the HTTP answer for an exception that ended a handler before its headers went out."""
    response = error_response(error)
    response.body = encode_json(describe_for_anthropic(error, request_id))
    return response


def _translate(status: int, body: ErrorBody, request_id: str) -> AnthropicError:
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    message = body.message.encode("utf-8", "replace").decode("utf-8")
    return AnthropicError(error=AnthropicErrorBody(type=kind, message=message), request_id=request_id)
