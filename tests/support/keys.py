"""Listeners with keys and sockets that knock on their doors: no sleeps, ZeroMQ tells how each handshake ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import zmq
from zmq.utils.monitor import recv_monitor_message

from pagewire.ipc.channels import ClientRouter, open_socket
from pagewire.ipc.curve import ClientKeys, PublicKey, ServerKeys, explain_refusal, make_keys

WAIT_MS = 10_000
_SUCCEEDED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_ENDS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
)


def keys_for(*names: str) -> tuple[ServerKeys, list[ClientKeys]]:
    """Keys of a listener that lets in `names`, and those of each of them."""
    server = ServerKeys(own=make_keys(), clients={})
    clients = []
    for name in names:
        server, client = server.with_client(name)
        clients.append(client)
    return server, clients


def stranger_to(server: ServerKeys) -> ClientKeys:
    """Keys of somebody who knows the listener and is not known to it."""
    return ClientKeys(own=make_keys(), server=server.own.public)


def misled(client: ClientKeys) -> ClientKeys:
    """The keys of somebody who is told another public key of the listener."""
    return ClientKeys(own=client.own, server=PublicKey(make_keys().public))


@contextmanager
def listening(keys: ServerKeys | None, address: str = "tcp://127.0.0.1:*") -> Iterator[ClientRouter]:
    """A router on a free port of this machine."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = ClientRouter(context, address, keys)
    yield router
    router.close()
    context.term()


def address_of(router: ClientRouter) -> str:
    """Where a router listens that was bound to port *."""
    return router.socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()


@contextmanager
def knocking(router: ClientRouter, keys: ClientKeys | None) -> Iterator[tuple[zmq.Socket[bytes], bool, str]]:
    """A client of a router that runs in this thread: its socket, whether it was let in, and why not."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = open_socket(context, zmq.DEALER, address_of(router))
    event = _await_handshake(router, socket, keys)
    refusal = explain_refusal(event["event"], event["value"], has_keys=keys is not None)
    yield socket, event["event"] == _SUCCEEDED, refusal
    socket.close()
    context.term()


def _await_handshake(router: ClientRouter, socket: zmq.Socket[bytes], keys: ClientKeys | None) -> dict[str, int]:
    if keys is not None:
        keys.apply_to(socket)
    monitor = socket.get_monitor_socket(_ENDS)
    socket.connect(address_of(router))
    poller = zmq.Poller()
    router.register(poller)
    poller.register(monitor, zmq.POLLIN)
    try:
        while True:
            events = dict(poller.poll(WAIT_MS))
            assert events, "the handshake does not end"
            router.answer_door(time.monotonic())
            if monitor in events:
                event = recv_monitor_message(monitor)
                return {"event": int(event["event"]), "value": int(event["value"])}
    finally:
        socket.disable_monitor()
        monitor.close()
