"""The core over real sockets: each client gets what is its own, whatever others send."""

from __future__ import annotations

import pytest

from pagewire.ipc.codec import PROTOCOL_VERSION
from pagewire.ipc.outputs import Goodbye, Ready, RequestEnd, StepOutputs, UtilityResult
from pagewire.ipc.requests import AbortRequests, CallUtility, Hello, Message
from tests.support.running_core import Client, request, running_core


def test_two_clients_use_the_same_ids_without_meeting(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        other = Client(core)
        other.greet()
        client.send(request(1, 5, 6, 7))
        other.send(request(1, 50, 60, 70))
        assert client.until_end(1)[0] != other.until_end(1)[0]
        other.close()


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        # They may have been given up long ago, and attach anew.
        (request(1, 5), "ClientGivenUp"),
        (CallUtility(call_id=1, method="stats"), "ClientGivenUp"),
        (Hello(protocol_version=999), "ProtocolError"),
        (b"\xff no message", "ProtocolError"),
    ],
)
def test_who_does_not_greet_rightly_is_sent_away_and_the_core_goes_on(monkeypatch, first: Message | bytes, kind: str):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        stranger = Client(core)
        stranger.send(first)
        goodbye = stranger.receive()
        assert isinstance(goodbye, Goodbye)
        assert goodbye.error.kind == kind
        stranger.close()
        client.send(request(1, 5, 6))
        assert client.until_end(1)[1].error is None


def test_who_greets_again_starts_anew_and_reads_nothing_of_what_was_asked_before(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (_, client):
        client.greet()
        client.send(request(1, 9, 9, max_tokens=190))
        client.send(Hello(protocol_version=PROTOCOL_VERSION, client_name="another of the same id"))
        while not isinstance(message := client.receive(), Ready):
            assert isinstance(message, StepOutputs)
        client.send(request(2, 5, 6))
        while True:
            message = client.receive()
            if isinstance(message, StepOutputs):
                assert {delta.request_id for delta in message.deltas} <= {2}
                assert 1 not in {end.request_id for end in message.ends}
                if message.ends:
                    break
        client.send(CallUtility(call_id=3, method="check_invariants"))
        answer = client.receive()
        assert isinstance(answer, UtilityResult)
        assert answer.result is True


def test_unreadable_message_ends_its_client_alone_with_its_requests(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        broken = Client(core)
        broken.greet()
        broken.send(request(1, 9, 9, max_tokens=150))
        broken.send(b"\x93\x01\x02")
        while not isinstance(message := broken.receive(), Goodbye):
            assert isinstance(message, StepOutputs)
        broken.close()
        client.send(request(1, 5, 6))
        assert client.until_end(1)[1].error is None
        client.send(CallUtility(call_id=2, method="check_invariants"))
        answer = client.receive()
        assert isinstance(answer, UtilityResult)
        assert answer.result is True


def test_refused_request_gets_its_one_terminal_message(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (_, client):
        client.greet()
        client.send(request(1))
        tokens, end = client.until_end(1)
        assert tokens == []
        assert end.is_refused
        assert end.error is not None
        assert end.error.kind == "InvalidRequest"


def test_abort_is_answered_by_the_terminal_message(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (_, client):
        client.greet()
        client.send(request(1, 5, 6, max_tokens=190))
        client.send(AbortRequests(request_ids=[1, 77]))
        tokens, end = client.until_end(1)
        assert len(tokens) < 190
        assert end.error is None


def test_drained_core_finishes_what_it_has_and_refuses_new_requests(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (_, client):
        client.greet()
        client.send(request(1, 5, max_tokens=190))
        client.send(CallUtility(call_id=1, method="drain"))
        client.send(request(2, 6))
        ends: dict[int, RequestEnd] = {}
        while len(ends) < 2:
            message = client.receive()
            if isinstance(message, StepOutputs):
                ends |= {end.request_id: end for end in message.ends}
        assert ends[1].error is None
        assert ends[2].is_refused
        assert ends[2].error is not None
        assert ends[2].error.kind == "Overloaded"


def test_idle_client_hears_when_the_others_are_done(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        idle = Client(core)
        idle.greet()
        client.send(request(1, 5, 6))
        client.until_end(1)
        message = idle.receive()
        assert isinstance(message, StepOutputs)
        assert message.stats is not None
        assert (message.stats.num_running, message.stats.num_used_blocks) == (0, 0)
        idle.close()
