"""Clients are greeted by version, pinged while they wait, and given up when they can't be reached."""

from __future__ import annotations

from typing import cast

import pytest

from pagewire.engine_core.clients.registry import PING_INTERVAL_S, ClientRegistry
from pagewire.ipc.channels import ClientId, ClientRouter, GoneClient, SlowClient
from pagewire.ipc.codec import PROTOCOL_VERSION
from pagewire.ipc.errors import EngineDead
from pagewire.ipc.outputs import Goodbye, StepOutputs
from pagewire.ipc.requests import Hello, Message, Ping

ALICE, BOB = ClientId(b"alice"), ClientId(b"bob")
HELLO = Hello(protocol_version=PROTOCOL_VERSION)


class RecordingRouter:
    """Takes what is sent; a client in `failing` can't be reached."""

    def __init__(self) -> None:
        self.sent: list[tuple[ClientId, Message]] = []
        self.failing: dict[ClientId, Exception] = {}

    def send(self, client: ClientId, message: Message) -> None:
        if client in self.failing:
            raise self.failing[client]
        self.sent.append((client, message))


@pytest.fixture
def router() -> RecordingRouter:
    return RecordingRouter()


@pytest.fixture
def clients(router: RecordingRouter) -> ClientRegistry:
    return ClientRegistry(cast("ClientRouter", router))


def test_fitting_version_is_taken_in(clients: ClientRegistry):
    assert ALICE not in clients
    assert clients.greet(ALICE, HELLO, now=0.0)
    assert ALICE in clients


def test_other_version_is_sent_away_with_both_versions(clients: ClientRegistry, router: RecordingRouter):
    assert not clients.greet(ALICE, Hello(protocol_version=PROTOCOL_VERSION + 5), now=0.0)
    assert ALICE not in clients
    ((_, goodbye),) = router.sent
    assert isinstance(goodbye, Goodbye)
    assert str(PROTOCOL_VERSION) in goodbye.error.message
    assert str(PROTOCOL_VERSION + 5) in goodbye.error.message


def test_silent_interval_is_filled_by_a_ping(clients: ClientRegistry, router: RecordingRouter):
    clients.greet(ALICE, HELLO, now=0.0)
    clients.greet(BOB, HELLO, now=0.0)
    clients.send(ALICE, StepOutputs(), now=PING_INTERVAL_S)
    clients.ping({ALICE, BOB}, now=PING_INTERVAL_S)
    assert router.sent == [(ALICE, StepOutputs()), (BOB, Ping())]
    clients.ping({ALICE, BOB}, now=PING_INTERVAL_S)
    assert len(router.sent) == 2, "a ping counts as said"


@pytest.mark.parametrize("error", [GoneClient("left"), SlowClient("full")])
def test_client_that_cannot_be_reached_is_lost_once(clients: ClientRegistry, router: RecordingRouter, error: Exception):
    clients.greet(ALICE, HELLO, now=0.0)
    router.failing[ALICE] = error
    clients.send(ALICE, StepOutputs(), now=1.0)
    clients.send(ALICE, StepOutputs(), now=1.0)
    assert clients.take_lost() == [ALICE]
    assert clients.take_lost() == []
    assert ALICE not in clients


def test_client_that_was_given_up_hears_why_when_it_speaks_again(clients: ClientRegistry, router: RecordingRouter):
    clients.greet(ALICE, HELLO, now=0.0)
    router.failing[ALICE] = SlowClient("1000 messages wait")
    clients.send(ALICE, StepOutputs(), now=1.0)
    del router.failing[ALICE]
    clients.dismiss_stranger(ALICE)
    clients.dismiss_stranger(BOB)
    (_, to_alice), (_, to_bob) = router.sent
    assert isinstance(to_alice, Goodbye)
    assert "1000 messages wait" in to_alice.error.message
    assert isinstance(to_bob, Goodbye)
    assert "Hello" in to_bob.error.message
    assert to_alice.error.kind == to_bob.error.kind == "ClientGivenUp", "both may attach anew"


def test_reason_is_kept_until_the_client_reads_it(clients: ClientRegistry, router: RecordingRouter):
    clients.greet(ALICE, HELLO, now=0.0)
    router.failing[ALICE] = SlowClient("1000 messages wait")
    clients.send(ALICE, StepOutputs(), now=1.0)
    for _ in range(3):
        clients.dismiss_stranger(ALICE)
    assert router.sent == []
    del router.failing[ALICE]
    clients.dismiss_stranger(ALICE)
    ((_, goodbye),) = router.sent
    assert isinstance(goodbye, Goodbye)
    assert "1000 messages wait" in goodbye.error.message


def test_client_whose_reason_is_forgotten_may_attach_anew_as_well(clients: ClientRegistry, router: RecordingRouter):
    names = [ClientId(b"%d" % index) for index in range(600)]
    for name in names:
        clients.greet(name, HELLO, now=0.0)
        router.failing[name] = SlowClient("full")
        clients.send(name, StepOutputs(), now=1.0)
    router.failing.clear()
    router.sent.clear()
    for name in names:
        clients.dismiss_stranger(name)
    assert [message.error.kind for _, message in router.sent if isinstance(message, Goodbye)] == ["ClientGivenUp"] * 600


def test_idle_clients_that_left_are_found_and_forgotten(clients: ClientRegistry, router: RecordingRouter):
    names = [ClientId(b"%d" % index) for index in range(1000)]
    for index, name in enumerate(names):
        clients.greet(name, HELLO, now=float(index))
        router.failing[name] = GoneClient("left")
    assert sum(name in clients for name in names) < 200


def test_goodbye_goes_to_all_and_survives_those_who_left(clients: ClientRegistry, router: RecordingRouter):
    clients.greet(ALICE, HELLO, now=0.0)
    clients.greet(BOB, HELLO, now=0.0)
    router.failing[ALICE] = GoneClient("left")
    error = EngineDead("over").to_info()
    clients.dismiss_all(error)
    assert router.sent == [(BOB, Goodbye(error=error))]
    assert BOB not in clients
