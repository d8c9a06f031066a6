"""OpenAI's batch format: a request a line, an answer a line. Pure functions of text.

A request: {"custom_id": ..., "method": "POST", "url": "/v1/chat/completions", "body": {...}}. An answer: {"id",
"custom_id", "response": {"status_code", "request_id", "body"}, "error"}; `error` is null wherever a server answered,
though it be with an error, and `response` is null where none did.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from ..address import JsonObject

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
)
_MAX_ID = 512


class BadLine(Exception):
    """A line that is no request; the text says why.

    Attributes:
        custom_id: if the line has one all the same.
    """

    def __init__(self, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.custom_id = custom_id


class BatchRequest(msgspec.Struct, frozen=True):
    """One request of a batch."""

    custom_id: str
    url: str
    body: JsonObject


class _Line(msgspec.Struct):
    custom_id: str
    url: str
    body: JsonObject
    method: str = "POST"


class _Answer(msgspec.Struct):
    custom_id: str | None = None
    response: Any = None  # Any: kept as it is
    error: Any = None


def read_request(line: bytes) -> BatchRequest:
    """Return the request of a line.

    Raises:
        BadLine: it is none.
    """
    try:
        read = msgspec.json.decode(line, type=_Line)
    except msgspec.DecodeError as exc:
        raise BadLine(f"no request of a batch: {exc}", _custom_id(line)) from exc
    if not 0 < len(read.custom_id) <= _MAX_ID:
        raise BadLine(f"custom_id has {len(read.custom_id)} characters; 1 to {_MAX_ID} are allowed.")
    if read.method.upper() != "POST":
        raise BadLine(f"method {read.method} is not POST.", read.custom_id)
    if read.url not in ENDPOINTS:
        raise BadLine(f"url {read.url} is not one of {', '.join(ENDPOINTS)}.", read.custom_id)
    if read.body.get("stream"):
        raise BadLine("stream: answers of a batch are whole; leave it out.", read.custom_id)
    return BatchRequest(custom_id=read.custom_id, url=read.url, body=read.body)


def answer_line(request: BatchRequest, status: int, request_id: str | None, body: bytes) -> bytes:
    """Return the line of what a server answered."""
    try:
        shown: object = msgspec.json.decode(body)
    except msgspec.DecodeError:
        shown = body.decode(errors="replace")
    return _line(
        request.custom_id, {"status_code": status, "request_id": request_id or f"req_{_new_id()}", "body": shown}, None
    )


def error_line(custom_id: str | None, code: str, message: str) -> bytes:
    """Return the line of a request that no server answered."""
    return _line(custom_id, None, {"code": code, "message": message})


def answered_id(line: bytes) -> str | None:
    """Return whose answer a line of an output file is; None if the request should be sent again, or it is no answer."""
    try:
        answer = msgspec.json.decode(line, type=_Answer)
    except msgspec.DecodeError:
        return None
    status = answer.response.get("status_code") if isinstance(answer.response, dict) else None
    # What the server could not do then, it may now; what it refused, it will refuse again.
    return answer.custom_id if isinstance(status, int) and status < 500 and status != 429 else None


def _line(custom_id: str | None, response: object, error: object) -> bytes:
    document = {"id": f"batch_req_{_new_id()}", "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(document) + b"\n"


def _custom_id(line: bytes) -> str | None:
    try:
        read = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    custom_id = read.get("custom_id") if isinstance(read, dict) else None
    return custom_id if isinstance(custom_id, str) else None


def _new_id() -> str:
    return secrets.token_hex(12)
