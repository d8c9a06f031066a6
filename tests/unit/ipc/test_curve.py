"""Keys: pairs that belong together, secrets that do not show, and what is no key."""

from __future__ import annotations

import pytest
import zmq

from pagewire.ipc.curve import ServerKeys, check_key, explain_refusal, key_pair, make_keys
from pagewire.ipc.errors import ConfigError


def test_each_pair_is_another_and_follows_from_its_secret():
    first, second = make_keys(), make_keys()
    assert first != second
    assert key_pair(first.secret) == first


def test_a_secret_key_does_not_show():
    pair = make_keys()
    server, client = ServerKeys(own=pair, clients={}).with_client("me")
    for holder in (pair, server, client):
        assert pair.public in repr(holder)
        assert pair.secret not in repr(holder)
        assert pair.secret not in str(holder)
    assert client.own.secret not in repr(client)


def test_a_client_that_is_let_in_for_the_run_has_keys_of_its_own():
    server = ServerKeys(own=make_keys(), clients={})
    one, first = server.with_client("first")
    two, second = one.with_client("second")
    assert server.clients == {}
    assert two.clients == {first.own.public: "first", second.own.public: "second"}
    assert first.server == second.server == server.own.public


@pytest.mark.parametrize("text", ["", "x" * 39, "x" * 45, '"' * 40, "é" * 40, "#" * 40, "x" * 40 + "\n"])
def test_what_is_no_key_is_refused_and_not_shown(text: str):
    with pytest.raises(ConfigError, match="40 characters") as caught:
        check_key(text)
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize(
    ("event", "detail", "has_keys", "part"),
    [
        (zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400, True, "--allow-clients"),
        (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH, False, "--engine-key"),
        (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH, True, "without keys"),
    ],
)
def test_a_refusal_for_good_has_a_reason(event: int, detail: int, has_keys: bool, part: str):
    assert part in explain_refusal(int(event), int(detail), has_keys=has_keys)


@pytest.mark.parametrize(
    ("event", "detail"),
    [
        (zmq.EVENT_DISCONNECTED, 20),
        (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, 32),
        (zmq.EVENT_HANDSHAKE_FAILED_AUTH, 300),  # the doorkeeper could not say yet
        (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC),
    ],
)
def test_a_break_that_may_pass_is_no_refusal(event: int, detail: int):
    assert explain_refusal(int(event), int(detail), has_keys=True) == ""
