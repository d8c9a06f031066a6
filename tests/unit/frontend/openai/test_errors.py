"""Every exception has one status and one body in OpenAI's shape."""

from __future__ import annotations

import json

import pytest

from pagewire.frontend.openai.errors import (
    ErrorBody,
    ModelNotFound,
    Unauthorized,
    describe_error,
    encode_error,
    error_response,
)
from pagewire.ipc.errors import (
    ConfigError,
    ContextTooLong,
    DeadlineExceeded,
    EngineDead,
    ExecutorDied,
    InvalidRequest,
    NotFound,
    Overloaded,
    PoisonRequest,
)


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (InvalidRequest("m", param="p"), 400, "invalid_request_error", None),
        (ContextTooLong("m", param="p"), 400, "invalid_request_error", "context_length_exceeded"),
        (ModelNotFound("m"), 404, "invalid_request_error", "model_not_found"),
        (NotFound("m"), 404, "invalid_request_error", "not_found"),
        (Unauthorized("m"), 401, "invalid_request_error", "invalid_api_key"),
        (Overloaded("m"), 503, "service_unavailable_error", "overloaded"),
        (DeadlineExceeded("m"), 504, "timeout_error", "deadline_exceeded"),
        (EngineDead("m"), 503, "service_unavailable_error", "engine_dead"),
        (PoisonRequest("m"), 500, "server_error", "poison_request"),
        (ExecutorDied("m"), 500, "server_error", "engine_error"),
        (ConfigError("m"), 500, "server_error", "engine_error"),
        (ValueError("m"), 500, "server_error", "internal_error"),
    ],
)
def test_exception_has_a_status_a_type_and_a_code(error, status, kind, code):
    got, body = describe_error(error)
    assert (got, body.type, body.code) == (status, kind, code)
    assert body.param == getattr(error, "param", None)


def test_overload_says_when_to_try_again():
    response = error_response(Overloaded("Too many requests wait.", retry_after_s=17))
    assert (response.status, response.headers["Retry-After"]) == (503, "17")
    assert int(error_response(EngineDead("m")).headers["Retry-After"]) >= 1


@pytest.mark.parametrize("error", [DeadlineExceeded("m"), PoisonRequest("m")])
def test_clients_are_told_not_to_send_again_what_would_fail_again(error):
    assert error_response(error).headers["x-should-retry"] == "false"


def test_faults_of_the_server_are_scrubbed_and_quotes_of_the_client_are_not():
    text = "The connection to ipc:///tmp/pagewire-x/core.sock failed."
    assert describe_error(EngineDead(text))[1].message == "The connection to [address] failed."
    assert describe_error(InvalidRequest("stop is '/a/b/c'."))[1].message == "stop is '/a/b/c'."


def test_lone_surrogate_in_a_message_can_be_sent():
    body = json.loads(encode_error(ErrorBody(message="bad \ud83d", type="t", param="\ud83d")))
    assert body["error"]["message"] == "bad ?"


def test_unknown_exceptions_give_nothing_away():
    assert "secret" not in describe_error(ValueError("secret"))[1].message
