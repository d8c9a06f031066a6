"""Typed messages over ZeroMQ sockets: blocking for executors, polled for the core, watched by clients.

Options that all sockets share: linger 0, because a message for a dead peer is worth nothing, and finite
high-water marks, because an unbounded queue only hides a slow reader.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Generic, NewType, TypeVar

import zmq

from .codec import Codec, client_messages, core_messages, encode, from_executor, to_executor
from .endpoints import ipc_path
from .errors import MachineError, PagewireError, ProtocolError
from .outputs import CoreMessage
from .requests import ClientMessage, Message
from .steps import FromExecutor, ToExecutor

ClientId = NewType("ClientId", bytes)  # the routing id that ZeroMQ gives a client's connection

# Messages that may wait for a client. One is sent per step, so a client that is 1,000 steps behind does not read.
CLIENT_HIGH_WATER_MARK = 1000
_POLLIN = int(zmq.POLLIN)  # arithmetic with the enum is slow
_MAX_MESSAGES_A_TURN = 64  # then the event loop serves others
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
    socket = _socket(context, zmq.PAIR)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.connect(address)
    return PairChannel(socket, from_executor)


def bind_core(context: zmq.Context[zmq.Socket[bytes]], address: str) -> PairChannel[ToExecutor]:
    """Return an executor's end of its conversation with the core."""
    socket = _socket(context, zmq.PAIR)
    socket.bind(address)
    return PairChannel(socket, to_executor)


class ClientRouter:
    """The core's side of all its clients: one ROUTER socket that never blocks and never drops silently."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        """Listen on `address`.

        Raises:
            MachineError: the address can't be bound.
        """
        self.socket = _socket(context, zmq.ROUTER)
        # Without it a ROUTER drops what it can't deliver, and nobody learns of it.
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.SNDHWM, CLIENT_HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        try:
            self.socket.bind(address)
        except zmq.ZMQError as exc:
            self.socket.close()
            raise MachineError(f"Can't listen on {address}: {exc.strerror}.") from exc
        self._path = ipc_path(address)
        if self._path is not None:
            self._path.chmod(0o600)

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
        self.socket.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


class CoreConnection:
    """A client's connection to the core: a DEALER socket that an asyncio event loop watches.

    Between socket and receiver there is no task and no queue: for a single stream, switching tasks would cost more than
    all else that is done for a token. Made and used on one event loop.
    """

    def __init__(self, address: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = _socket(self._context, zmq.DEALER)
        self._socket.connect(address)
        self._fd = self._socket.fileno()
        self._unsent: deque[bytes] = deque()
        self._receiver: Callable[[list[CoreMessage]], None] | None = None
        self._on_failure: Callable[[Exception], None] | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._turn)

    @property
    def has_unsent(self) -> bool:
        """Whether messages wait for a core that does not read."""
        return bool(self._unsent)

    def send(self, message: Message) -> None:
        """Send a message, or keep it while the core does not read."""
        self._unsent.append(encode(message))
        self._flush()
        # The descriptor tells of news once, and sending takes the telling: what came meanwhile must be looked for.
        self._loop.call_soon(self._turn)

    async def recv(self) -> CoreMessage:
        """Wait for the next message; only before `receive_with`.

        Raises:
            ProtocolError: the core sent what this version does not understand.
        """
        while (message := self._try_recv()) is None:
            self._arrival = self._loop.create_future()
            await self._arrival
        return message

    def receive_with(
        self, receiver: Callable[[list[CoreMessage]], None], on_failure: Callable[[Exception], None]
    ) -> None:
        """Hand over all messages from here on, those that came together in one call.

        Args:
            receiver: is called on the event loop.
            on_failure: is called once, with what ended the receiving: a `ProtocolError`, or what `receiver` raised.
        """
        self._receiver, self._on_failure = receiver, on_failure
        self._loop.call_soon(self._turn)

    def close(self) -> None:
        """Close the socket; what was not sent yet is dropped. Closing twice is fine."""
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._socket.close()
            self._context.term()

    def _turn(self) -> None:
        """Do what can be done now; called whenever the descriptor may have news."""
        if self._socket.closed:
            return
        if self._unsent:
            self._flush()
        if self._receiver is None or self._on_failure is None:
            if self._arrival is not None and not self._arrival.done():
                self._arrival.set_result(None)
            return
        try:
            self._hand_over(self._receiver)
        # Whatever it is: nobody awaits this call, and those who wait for tokens must hear of it.
        except Exception as exc:
            self._receiver = None
            # Nobody reads any more, and news that nobody reads keep the descriptor ready for good.
            self._loop.remove_reader(self._fd)
            self._on_failure(exc)
            return
        # Looking for messages may have taken the telling that there is room for others.
        if self._unsent:
            self._flush()

    def _hand_over(self, receiver: Callable[[list[CoreMessage]], None]) -> None:
        messages: list[CoreMessage] = []
        try:
            message = self._try_recv()
            while message is not None:
                messages.append(message)
                if len(messages) == _MAX_MESSAGES_A_TURN:
                    self._loop.call_soon(self._turn)
                    break
                # Asking costs less than an error that says "not yet", and one message at a time is the rule.
                message = self._try_recv() if int(self._socket.get(zmq.EVENTS)) & _POLLIN else None
        finally:  # what came before an unreadable message counts
            if messages:
                receiver(messages)

    def _try_recv(self) -> CoreMessage | None:
        try:
            frame = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return core_messages.decode(frame)

    def _flush(self) -> None:
        with contextlib.suppress(zmq.Again):
            while self._unsent:
                self._socket.send(self._unsent[0], zmq.NOBLOCK)
                self._unsent.popleft()


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    return socket
