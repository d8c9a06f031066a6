"""Typed messages over ZeroMQ sockets: blocking for executors, polled for the core; clients have a `CoreConnection`.

Options that all sockets share: linger 0, because a message for a dead peer is worth nothing, and finite
high-water marks, because an unbounded queue only hides a slow reader.
"""

from __future__ import annotations

import os
from typing import Generic, NewType, TypeVar

import zmq

from .codec import Codec, client_messages, encode, from_executor, to_executor
from .curve import ServerKeys
from .endpoints import ipc_path
from .errors import MachineError, PagewireError, ProtocolError
from .requests import ClientMessage, Message
from .steps import FromExecutor, ToExecutor
from .zap import Doorkeeper

ClientId = NewType("ClientId", bytes)  # the routing id that ZeroMQ gives a client's connection

# Messages that may wait for a client. One is sent per step, so a client that is 1,000 steps behind does not read.
CLIENT_HIGH_WATER_MARK = 1000
_RECONNECT_MS = 10  # an executor binds some tenths of a second after its start, and waits for its first message
MAX_MESSAGE_BYTES = 64 * 2**20  # bounds what a client can make the core allocate

T = TypeVar("T")


class SlowClient(PagewireError):
    """The client's queue is full: it does not read."""


class GoneClient(PagewireError):
    """The client's connection is closed."""


class PairChannel(Generic[T]):
    """One end of a core <-> executor conversation: a PAIR socket.

    The core's end connects. A bound PAIR without a peer blocks in `send`, so the core would hang on an executor that
    died, or that never came up; a connecting one queues, and the death notice tells.
    """

    def __init__(self, socket: zmq.Socket[bytes], codec: Codec[T]) -> None:
        self.socket = socket
        self._codec = codec

    def send(self, message: Message) -> None:
        """Queue a message; never blocks below ZeroMQ's default high-water mark."""
        self.socket.send(encode(message))

    def recv(self) -> T:
        """Wait for the next message."""
        return self.decode(self.recv_frame())

    def recv_frame(self) -> bytes:
        """Wait for the next message, as it came."""
        return self.socket.recv()

    def wait(self, timeout_ms: int | None = None, *, fd: int | None = None) -> bool:
        """Wait for a message, or until a descriptor is readable; return whether there is either.

        Args:
            timeout_ms: milliseconds; None: as long as it takes.
            fd: the descriptor; None: nothing but messages is waited for.
        """
        if fd is None:
            return bool(self.socket.poll(timeout_ms))
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(fd, zmq.POLLIN)
        return bool(poller.poll(timeout_ms))

    def decode(self, frame: bytes) -> T:
        """Return the message in a frame."""
        return self._codec.decode(frame)

    def try_recv(self) -> T | None:
        """Return the next message, None if there is none yet."""
        try:
            frame = self.socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return self.decode(frame)

    def close(self) -> None:
        """Close the socket; queued messages are dropped."""
        self.socket.close()


def connect_executor(context: zmq.Context[zmq.Socket[bytes]], address: str) -> PairChannel[FromExecutor]:
    """Return the core's end of a conversation with one executor, which may not run yet."""
    socket = open_socket(context, zmq.PAIR)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.connect(address)
    return PairChannel(socket, from_executor)


def bind_core(context: zmq.Context[zmq.Socket[bytes]], address: str) -> PairChannel[ToExecutor]:
    """Return an executor's end of its conversation with the core."""
    socket = open_socket(context, zmq.PAIR)
    socket.bind(address)
    return PairChannel(socket, to_executor)


class ClientRouter:
    """The core's side of all its clients: one ROUTER socket that never blocks and never drops silently."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, keys: ServerKeys | None = None) -> None:
        """Listen on `address`, with `keys` for the clients that these name alone.

        Raises:
            MachineError: the address can't be bound.
        """
        self.socket = open_socket(context, zmq.ROUTER, address)
        self._doorkeeper = None if keys is None else Doorkeeper(context, keys.clients)
        if keys is not None:
            keys.apply_to(self.socket)
        # Without it a ROUTER drops what it can't deliver, and nobody learns of it.
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.SNDHWM, CLIENT_HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._path = ipc_path(address)
        # The file is its owner's alone from the first moment: the directory may be one that others can enter.
        umask = os.umask(0o177)
        try:
            self.socket.bind(address)
        except zmq.ZMQError as exc:
            self._close_sockets()
            raise MachineError(f"Can't listen on {address}: {exc.strerror}.") from exc
        finally:
            os.umask(umask)

    def register(self, poller: zmq.Poller) -> None:
        """Add what clients do to a poll: they send, and new ones ask to be let in."""
        poller.register(self.socket, zmq.POLLIN)
        if self._doorkeeper is not None:
            poller.register(self._doorkeeper.socket, zmq.POLLIN)

    def answer_door(self, now: float) -> None:
        """Let in new clients, or refuse them; after each poll. Without keys the system has done so."""
        if self._doorkeeper is not None:
            self._doorkeeper.answer(now)

    def send(self, client: ClientId, message: Message) -> None:
        """Send to one client without waiting.

        Raises:
            SlowClient: its queue is full.
            GoneClient: it is not connected.
        """
        try:
            self.socket.send_multipart((client, encode(message)), zmq.NOBLOCK, copy=True)
        except zmq.Again as exc:
            raise SlowClient(f"{CLIENT_HIGH_WATER_MARK} messages wait for the client") from exc
        except zmq.ZMQError as exc:
            if exc.errno != zmq.EHOSTUNREACH:
                raise
            raise GoneClient("the client closed its connection") from exc

    def try_recv(self) -> tuple[ClientId, ClientMessage | ProtocolError] | None:
        """Return the next message and its sender, None if there is none. What can't be read is returned as an error."""
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        client = ClientId(frames[0])
        if len(frames) != 2:
            return client, ProtocolError(f"a message has one frame; got {len(frames) - 1}")
        try:
            return client, client_messages.decode(frames[1])
        except ProtocolError as exc:
            return client, exc

    def close(self) -> None:
        """Close the socket and remove its file, which ZeroMQ leaves behind."""
        self._close_sockets()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _close_sockets(self) -> None:
        self.socket.close()
        if self._doorkeeper is not None:
            self._doorkeeper.close()


def open_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str = "") -> zmq.Socket[bytes]:
    """Return a socket with the options that all share.

    Args:
        context: the process's.
        kind: of ZeroMQ, DEALER for example.
        address: what it is for; some take an option of their own.
    """
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    if address.startswith("tcp://["):  # ZeroMQ takes IPv6 addresses only if it is told to
        socket.setsockopt(zmq.IPV6, 1)
    return socket
