"""GET /openapi.json: the server's interface, written from the very structs that read and write its bodies.

Source: OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.0); its schemas are those of JSON Schema 2020-12, as msgspec
writes them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from types import UnionType
from typing import Any

import msgspec
from aiohttp import web

from pagewire.version import __version__

from ...anthropic.request import CountTokensRequest, MessageRequest
from ..chat_batch import BatchChatRequest
from ..errors import ErrorResponse
from ..messages import EMPTY_FIELDS, EMPTY_VALUES, ROLES
from ..responses.request import ResponseRequest
from .json_body import encode_json
from .operations import OPERATIONS, Operation
from .schema import NEUTRAL_VALUES, ChatRequest, CompletionRequest

JsonObject = dict[str, Any]  # Any: a JSON document, written for others to read

_REF = "#/components/schemas/{name}"

_PARAMETERS = {
    "name": "A file of the web page.",
    "model": "A name of the list; it may hold slashes.",
    "response_id": "The id of a response that was stored.",
}
_ERRORS = {
    400: "A value is malformed, out of range or not supported; `param` names the field. Or this is no HTTP.",
    401: "The API key is missing or wrong.",
    404: "The model, or what the path names, does not exist.",
    408: "The request did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    417: "The Expect header asks for something else than 100-continue.",
    431: "A header or the path is too long.",
    500: "The server's fault; the request may be sent again, unless x-should-retry says that it ends a process.",
    503: "The server is full, restarting or shutting down.",
    504: "The time that the request was given is over.",
}
_ALWAYS = (400, 408, 417, 431)
_WITH_BODY = (413, 415)


async def describe(_request: web.Request) -> web.Response:
    """The description, the same for every request."""
    return web.Response(body=_encoded_description(), content_type="application/json", charset="utf-8")


@functools.cache
def _encoded_description() -> bytes:
    return encode_json(describe_api())


def describe_api() -> JsonObject:
    """Return the OpenAPI document."""
    structs = {struct for operation in OPERATIONS for struct in _structs(operation)}
    by_name = sorted(structs, key=lambda struct: struct.__name__)
    _, schemas = msgspec.json.schema_components(by_name, ref_template=_REF)
    _narrow(schemas)
    paths: JsonObject = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pagewire",
            "version": __version__,
            "description": "OpenAI's completions, chat completions and responses, Anthropic's messages, with vLLM's "
            "additional fields. Unknown fields are refused. null always means that a field is not given.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "apiKey": {"type": "http", "scheme": "bearer", "description": "Needed if the server has API keys."}
            },
        },
    }


def _structs(operation: Operation) -> Iterator[type[msgspec.Struct]]:
    named = operation.event.__args__ if isinstance(operation.event, UnionType) else ()
    for struct in (operation.body, operation.answer, operation.event, operation.error, *named):
        if isinstance(struct, type):
            yield struct


def _narrow(schemas: JsonObject) -> None:
    """Write into the schemas what handlers refuse beyond what the structs say."""
    for request in (
        ChatRequest,
        BatchChatRequest,
        CompletionRequest,
        ResponseRequest,
        CountTokensRequest,
        MessageRequest,
    ):
        for name in request.unsupported_fields:
            schemas[request.__name__]["properties"][name] = _only(None, *NEUTRAL_VALUES.get(name, ()))
    message = schemas["ChatMessage"]["properties"]
    message["role"] = {"enum": list(ROLES)}
    for name in EMPTY_FIELDS:
        message[name] = _only(*EMPTY_VALUES)
    completion = schemas["CompletionRequest"]
    completion["required"] = [*completion.get("required", ()), "prompt"]
    prompt = completion["properties"]["prompt"]
    prompt["anyOf"] = [each for each in prompt["anyOf"] if each != {"type": "null"}]
    prompt.pop("default", None)
    tokenize = schemas["TokenizeRequest"]
    tokenize["oneOf"] = [
        {"required": [given], "properties": {given: {"not": {"type": "null"}}, other: {"type": "null"}}}
        for given, other in (("prompt", "messages"), ("messages", "prompt"))
    ]


def _only(*values: object) -> JsonObject:
    return {
        "enum": list(values),
        "description": "Not supported (yet): only values that ask for nothing are taken.",
    }


def _describe(operation: Operation) -> JsonObject:
    described: JsonObject = {
        "operationId": operation.method + re.sub(r"\W", "_", re.sub(r"[{}]", "", operation.path)),
        "summary": operation.summary,
        "responses": {"200": _describe_answer(operation)},
    }
    names = re.findall(r"\{(\w+)\}", operation.path)
    if names:
        described["parameters"] = [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": _PARAMETERS[name],
                "schema": {"type": "string", "minLength": 1},
            }
            for name in names
        ]
    if operation.query:
        described.setdefault("parameters", []).extend(
            {"name": name, "in": "query", "schema": {"enum": list(values)} if values else {"type": "integer"}}
            for name, values in operation.query.items()
        )
    if operation.body is not None:
        content = {"application/json": {"schema": _reference(operation.body)}}
        described["requestBody"] = {"required": True, "content": content}
    statuses = {*_ALWAYS, *operation.errors, *(_WITH_BODY if operation.body is not None else ())}
    if not operation.is_open:
        statuses.add(401)
        described["security"] = [{"apiKey": []}, {}]
    described["responses"] |= {
        # Which route a head is for is not known while the head is too long.
        str(status): _describe_error(status, ErrorResponse if status == 431 else operation.error)
        for status in sorted(statuses)
    }
    return described


def _describe_answer(operation: Operation) -> JsonObject:
    match operation.answer:
        case None:
            return {"description": "An empty body."}
        case str() as media_type:
            return {"description": operation.summary, "content": {media_type: {}}}
        case struct:
            content: JsonObject = {"application/json": {"schema": _reference(struct)}}
    if isinstance(operation.event, UnionType):
        content["text/event-stream"] = {
            "schema": {
                "type": "string",
                "description": "If `stream` is true: events `event: TYPE` and `data: JSON`, as `x-events` has them. "
                "Lines that begin with a colon keep the connection alive.",
            },
            "x-events": {"oneOf": [_reference(struct) for struct in operation.event.__args__]},
        }
    elif operation.event is not None:
        content["text/event-stream"] = {
            "schema": {
                "type": "string",
                "description": f"If `stream` is true: events `data: JSON`, each a {operation.event.__name__} or, as "
                "the last but one, an ErrorResponse; then `data: [DONE]`. Lines that begin with a colon keep the "
                "connection alive.",
            }
        }
    return {"description": operation.summary, "content": content}


def _describe_error(status: int, error: type[msgspec.Struct]) -> JsonObject:
    described: JsonObject = {
        "description": _ERRORS[status],
        "content": {"application/json": {"schema": _reference(error)}},
    }
    if status == 503:
        described["headers"] = {
            "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
        }
    if status in (500, 504):
        described["headers"] = {
            "x-should-retry": {
                "description": "There if the same would come of sending the request again.",
                "schema": {"const": "false"},
            }
        }
    return described


def _reference(struct: type[msgspec.Struct]) -> JsonObject:
    return {"$ref": _REF.format(name=struct.__name__)}
