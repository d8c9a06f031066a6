from __future__ import annotations

import json

import pytest

from pagewire.frontend.terminal.batch.lines import (
    BadLine,
    BatchRequest,
    answer_line,
    answered_id,
    error_line,
    read_request,
)

REQUEST = BatchRequest("a", "/v1/completions", {"prompt": "p"})


def line(**changes: object) -> bytes:
    document = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "p"}}
    return json.dumps({**document, **changes}).encode()


def test_a_line_is_a_request():
    assert read_request(line()) == REQUEST


@pytest.mark.parametrize(
    ("text", "part", "custom_id"),
    [
        (b"garbage", "JSON is malformed", None),
        (b"[]", "Expected `object`", None),
        (line(body=1), "Expected `object`, got `int` - at `\\$.body`", "a"),
        (line(custom_id=""), "custom_id has 0 characters", None),
        (line(custom_id=7), "custom_id", None),
        (line(method="GET"), "method GET is not POST", "a"),
        (line(url="/v1/files"), "/v1/files is not one of /v1/chat", "a"),
        (line(body={"stream": True}), "answers of a batch are whole", "a"),
    ],
)
def test_a_line_that_is_none_says_why(text: bytes, part: str, custom_id: str | None):
    with pytest.raises(BadLine, match=part) as caught:
        read_request(text)
    assert caught.value.custom_id == custom_id


def test_an_answer_has_the_form_of_openais_batches():
    answer = json.loads(answer_line(REQUEST, 200, "req-1", b'{"choices": []}'))
    assert answer.pop("id").startswith("batch_req_")
    assert answer == {
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "req-1", "body": {"choices": []}},
        "error": None,
    }
    failed = json.loads(error_line(None, "code", "why"))
    assert (failed["response"], failed["error"]) == (None, {"code": "code", "message": "why"})
    assert json.loads(answer_line(REQUEST, 502, None, b"<html>"))["response"]["body"] == "<html>"


@pytest.mark.parametrize(("status", "stays"), [(200, True), (400, True), (404, True), (429, False), (503, False)])
def test_what_a_server_could_not_do_then_is_sent_again(status: int, stays: bool):
    assert (answered_id(answer_line(REQUEST, status, None, b"{}")) == "a") is stays
    assert answered_id(error_line("a", "connection_error", "why")) is None
    assert answered_id(b'{"id": "batch_req_1", "custom') is None
