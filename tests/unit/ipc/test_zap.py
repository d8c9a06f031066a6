"""A tcp:// listener with keys lets in those it knows, over real sockets, and nobody if its doorkeeper is gone."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Mapping

import pytest
import zmq
from zmq.utils import z85

from pagewire.ipc.codec import PROTOCOL_VERSION, encode
from pagewire.ipc.curve import PublicKey
from pagewire.ipc.requests import Hello
from pagewire.ipc.zap import Doorkeeper
from tests.support.keys import WAIT_MS, keys_for, knocking, listening, misled, stranger_to


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def hello(name: str) -> Hello:
    return Hello(protocol_version=PROTOCOL_VERSION, client_name=name)


def test_known_keys_are_let_in_and_named(caplog: pytest.LogCaptureFixture):
    server, clients = keys_for("alice", "bob")
    with listening(server) as router, caplog.at_level(logging.INFO):
        for name, keys in zip(("alice", "bob"), clients, strict=True):
            with knocking(router, keys) as (client, is_in, _):
                assert is_in
                assert f"the key of {name} connects from 127.0.0.1" in caplog.text
                client.send(encode(hello(name)))
                assert router.socket.poll(WAIT_MS)
                received = router.try_recv()
                assert received is not None
                assert received[1] == hello(name)


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
def test_listeners_and_clients_find_each_other_over_ipv6():
    server, (alice,) = keys_for("alice")
    with listening(server, "tcp://[::1]:*") as router, knocking(router, alice) as (_, is_in, _):
        assert is_in


def test_an_unknown_key_is_refused_and_told_so(caplog: pytest.LogCaptureFixture):
    server, _ = keys_for("alice")
    with listening(server) as router, knocking(router, stranger_to(server)) as (_, is_in, refusal):
        assert not is_in
        assert "--allow-clients" in refusal
        assert "refused a client at 127.0.0.1" in caplog.text


def test_a_client_without_keys_is_refused():
    server, _ = keys_for("alice")
    with listening(server) as router, knocking(router, None) as (_, is_in, _):
        assert not is_in


def test_a_client_never_talks_to_a_listener_that_is_not_the_one_it_means():
    server, (alice,) = keys_for("alice")
    with listening(server) as router, knocking(router, misled(alice)) as (_, is_in, _):
        assert not is_in


def test_a_client_with_keys_does_not_talk_to_a_listener_without():
    _, (alice,) = keys_for("alice")
    with listening(None) as router, knocking(router, alice) as (_, is_in, _):
        assert not is_in


def test_without_a_doorkeeper_nobody_is_let_in():
    server, (alice,) = keys_for("alice")
    with listening(None) as router:
        router.socket.unbind(router.socket.getsockopt(zmq.LAST_ENDPOINT))
        server.apply_to(router.socket)
        router.socket.bind("tcp://127.0.0.1:*")
        with knocking(router, alice) as (_, is_in, _):
            assert not is_in


def test_what_a_refused_client_sends_never_arrives():
    server, (alice,) = keys_for("alice")
    with (
        listening(server) as router,
        knocking(router, stranger_to(server)) as (stranger, _, _),
        knocking(router, alice) as (known, is_in, _),
    ):
        with contextlib.suppress(zmq.Again):  # most times there is no way left to send it on
            stranger.send(encode(hello("stranger")), zmq.NOBLOCK)
        assert is_in
        known.send(encode(hello("alice")))
        assert router.socket.poll(WAIT_MS)
        received = router.try_recv()
        assert received is not None
        assert received[1] == hello("alice")
        assert router.try_recv() is None


class Asking:
    """Puts questions to a doorkeeper as ZeroMQ's own threads do."""

    def __init__(self, clients: Mapping[PublicKey, str]) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._doorkeeper = Doorkeeper(self._context, clients)
        self._socket = self._context.socket(zmq.REQ)
        self._socket.connect("inproc://zeromq.zap.01")

    def ask(self, mechanism: bytes, *credentials: bytes, now: float = 0.0) -> bytes:
        """The status of the answer."""
        self._socket.send_multipart([b"1.0", b"7", b"pagewire", b"10.0.0.1", b"", mechanism, *credentials])
        assert self._doorkeeper.socket.poll(WAIT_MS)
        self._doorkeeper.answer(now)
        version, request_id, status, *_ = self._socket.recv_multipart()
        assert (version, request_id) == (b"1.0", b"7")
        return status

    def close(self) -> None:
        self._socket.close()
        self._doorkeeper.close()
        self._context.term()


def test_refusals_do_not_flood_the_log(caplog: pytest.LogCaptureFixture):
    with contextlib.closing(Asking({})) as asking:
        for now in (0.0, 1.0, 9.9, 10.0):
            assert asking.ask(b"CURVE", b"\0" * 32, now=now) == b"400"
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "3 refusals" in lines[1]


def test_a_key_by_another_mechanism_proves_nothing():
    server, (alice,) = keys_for("alice")
    with contextlib.closing(Asking(server.clients)) as asking:
        assert asking.ask(b"PLAIN", alice.own.public.encode(), b"") == b"400"
        assert asking.ask(b"NULL") == b"400"
        assert asking.ask(b"CURVE", z85.decode(alice.own.public)) == b"200"
