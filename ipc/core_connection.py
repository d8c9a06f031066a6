"""A client's end of its conversation with the core: a socket that an asyncio event loop watches."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import Callable

import zmq

from .channels import open_socket
from .codec import core_messages, encode
from .curve import ClientKeys, explain_refusal
from .errors import PagewireError
from .outputs import CoreMessage
from .requests import Message

_POLLIN = int(zmq.POLLIN)  # arithmetic with the enum is slow
_MAX_MESSAGES_A_TURN = 64  # then the event loop serves others

_ESTABLISHED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_BREAKS = int(
    zmq.EVENT_CLOSED  # nobody listens
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_EVENT = struct.Struct("=Hi")  # which event, and what ZeroMQ says of it
_EVENTS = "inproc://events"  # each connection has a context of its own
# ZeroMQ's own word for never, -1, has it drop what was received before the break, a Goodbye for example.
_NEVER_MS = 24 * 3600 * 1000


class LostConnection(PagewireError):
    """The connection to the core is broken, or was never made. Connect anew."""


class CoreConnection:
    """A client's connection to the core: a DEALER socket that an asyncio event loop watches.

    Between socket and receiver there is no task and no queue: for a single stream, switching tasks would cost more than
    all else that is done for a token. Made and used on one event loop.

    It never connects a second time: ZeroMQ would hand what waits for a dead core to the next one, which knows nothing
    of this client. Who wants to go on closes it and makes another.

    Attributes:
        is_established: whether the other side has answered as ZeroMQ does. A listener that is stopped has not.
        refusal: why the other side does not let this client in; "" while it may.
    """

    def __init__(self, address: str, keys: ClientKeys | None = None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = open_socket(self._context, zmq.DEALER, address)
        if keys is not None:
            keys.apply_to(self._socket)
        self._socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
        self._socket.monitor(_EVENTS, _ESTABLISHED | _BREAKS)
        self._events = open_socket(self._context, zmq.PAIR)
        self._events.connect(_EVENTS)
        self._socket.connect(address)
        self.is_established = False
        self.refusal = ""
        self._has_keys = keys is not None
        self._is_broken = False
        self._fd = self._socket.fileno()
        self._events_fd = self._events.fileno()
        self._unsent: deque[bytes] = deque()
        self._receiver: Callable[[list[CoreMessage]], None] | None = None
        self._on_failure: Callable[[Exception], None] | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._turn)
        self._loop.add_reader(self._events_fd, self._take_events)
        self._loop.call_soon(self._take_events)  # the descriptor tells of news only to those who have looked once

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
            LostConnection: the connection is broken, and all that came before was received.
            ProtocolError: the core sent what this version does not understand.
        """
        while (message := self._try_recv()) is None:
            if self._is_broken:
                raise LostConnection("The connection to the engine broke.")
            self._arrival = self._loop.create_future()
            await self._arrival
        return message

    def receive_with(
        self, receiver: Callable[[list[CoreMessage]], None], on_failure: Callable[[Exception], None]
    ) -> None:
        """Hand over all messages from here on, those that came together in one call.

        Args:
            receiver: is called on the event loop.
            on_failure: is called once, with what ended the receiving: `LostConnection` after all that came before it, a
                `ProtocolError`, or what `receiver` raised.
        """
        self._receiver, self._on_failure = receiver, on_failure
        self._loop.call_soon(self._turn)

    def close(self) -> None:
        """Close the socket; what was not sent yet is dropped. Closing twice is fine."""
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._loop.remove_reader(self._events_fd)
            self._socket.monitor(None, 0)
            self._socket.close()
            self._events.close()
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
            has_all = self._hand_over(self._receiver)
            if self._is_broken and has_all:
                raise LostConnection("The connection to the engine broke.")
        # Whatever it is: nobody awaits this call, and those who wait for tokens must hear of it.
        except Exception as exc:
            self._receiver = None
            if not self._socket.closed:
                # Nobody reads any more, and news that nobody reads keep the descriptor ready for good.
                self._loop.remove_reader(self._fd)
                self._loop.remove_reader(self._events_fd)
            self._on_failure(exc)
            return
        # Looking for messages may have taken the telling that there is room for others.
        if self._unsent:
            self._flush()

    def _hand_over(self, receiver: Callable[[list[CoreMessage]], None]) -> bool:
        """Return whether that was all that came."""
        messages: list[CoreMessage] = []
        try:
            message = self._try_recv()
            while message is not None:
                messages.append(message)
                if len(messages) == _MAX_MESSAGES_A_TURN:
                    self._loop.call_soon(self._turn)
                    return False
                # Asking costs less than an error that says "not yet", and one message at a time is the rule.
                message = self._try_recv() if int(self._socket.get(zmq.EVENTS)) & _POLLIN else None
        finally:  # what came before an unreadable message counts
            if messages:
                receiver(messages)
        return True

    def _take_events(self) -> None:
        """Note what became of the connection."""
        with contextlib.suppress(zmq.Again):
            while not self._events.closed:
                event, value = _EVENT.unpack(self._events.recv_multipart(zmq.NOBLOCK)[0])
                if event == _ESTABLISHED:
                    self.is_established = True
                else:
                    self._is_broken = True
                    self.refusal = self.refusal or explain_refusal(event, value, has_keys=self._has_keys)
        if self._is_broken:
            self._turn()  # what came before the break counts

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
