"""/openapi.json says what the server does: its routes, its fields, its errors."""

from __future__ import annotations

import re

import msgspec
import pytest

from pagewire.frontend.openai import errors
from pagewire.frontend.openai.bodies import schema
from pagewire.frontend.openai.bodies.description import OPERATIONS, describe_api
from pagewire.ipc.errors import RequestError
from tests.support.http_server import message, running_server


@pytest.fixture(scope="module")
def document():
    return describe_api()


async def test_it_is_served_as_json():
    async with running_server("x") as server, server.http.get("/openapi.json") as response:
        assert response.status == 200
        assert response.content_type == "application/json"
        assert (await response.json()) == msgspec.json.decode(msgspec.json.encode(describe_api()))


async def test_every_route_is_described_and_no_other(document):
    async with running_server("x") as server:
        routed = set()
        for route in server.app.router.routes():
            path = re.sub(r"\{(\w+):[^}]*\}", r"{\1}", route.resource.canonical)
            methods = {"GET", "POST"} if route.method == "*" else {route.method} - {"HEAD"}
            routed |= {(method.lower(), path) for method in methods}
    assert routed == {(method, path) for path, methods in document["paths"].items() for method in methods}


def test_every_reference_leads_to_a_schema(document):
    names = set(re.findall(r"#/components/schemas/(\w+)", msgspec.json.encode(document).decode()))
    assert names
    assert names <= document["components"]["schemas"].keys()
    unused = document["components"]["schemas"].keys() - names
    assert unused <= {"ChatChunk"}, "described, and named by no operation"


@pytest.mark.parametrize("struct", [schema.ChatRequest, schema.CompletionRequest, schema.TokenizeRequest])
def test_every_field_of_a_request_is_described(document, struct):
    described = document["components"]["schemas"][struct.__name__]
    assert set(described["properties"]) == {field.name for field in msgspec.structs.fields(struct)}
    assert described["additionalProperties"] is False


async def test_values_described_for_what_messages_can_not_bring_yet_are_taken_and_no_others(document):
    properties = document["components"]["schemas"]["ChatMessage"]["properties"]
    async with running_server("x") as server:
        for role in properties["role"]["enum"]:
            await server.chat(messages=[message("x", role), message("y")])
        for value in properties["annotations"]["enum"]:
            await server.chat(messages=[{**message("x"), "annotations": value}])
        for value in (False, 0, {}, [0], "x"):
            status, _ = await server.post("/v1/chat/completions", messages=[{**message("x"), "annotations": value}])
            assert status == 400


async def test_values_described_for_unsupported_fields_are_taken(document):
    properties = document["components"]["schemas"]["ChatRequest"]["properties"]
    async with running_server("x") as server:
        for name in schema.ChatRequest.unsupported_fields:
            assert None in properties[name]["enum"]
            for value in properties[name]["enum"]:
                await server.chat(messages=[message("x")], **{name: value})


def test_every_status_of_an_error_is_described(document):
    known = {
        error.status for error in vars(errors).values() if isinstance(error, type) and issubclass(error, RequestError)
    }
    described = {
        int(status)
        for methods in document["paths"].values()
        for operation in methods.values()
        for status in operation["responses"]
    }
    assert known <= described


def test_operations_have_names_of_their_own(document):
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names) == len(OPERATIONS)


def test_only_what_is_answered_without_a_key_is_described_so(document):
    is_open = {
        path
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if "security" not in operation
    }
    assert is_open == {"/", "/docs", "/health", "/ping", "/live", "/ui/{name}"}


def test_headers_that_tell_whether_to_try_again_are_described_where_they_are_sent(document):
    for methods in document["paths"].values():
        for operation in methods.values():
            for status, answer in operation["responses"].items():
                expected = {"503": {"Retry-After"}, "500": {"x-should-retry"}, "504": {"x-should-retry"}}
                assert set(answer.get("headers", {})) == expected.get(status, set())
