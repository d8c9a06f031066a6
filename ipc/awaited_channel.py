"""A conversation with an executor on another host: the core listens, and the executor comes to it.

So only the core's host needs an address that the others know. Until the executor is there, what the core says waits
here: ZeroMQ would block on a socket without a peer.
"""

from __future__ import annotations

from collections import deque

import zmq

from .channels import PairChannel, bind_core, open_socket
from .codec import encode, from_executor, to_executor
from .curve import ClientKeys, ServerKeys
from .errors import MachineError
from .requests import Message
from .steps import FromExecutor, ToExecutor

_HERE = b""  # the executor's first frame; no message is empty
# A connection without a sign of life is closed: it may have ended without a word, with a cable or a host.
_HEARTBEAT_MS = 500
_SILENCE_LIMIT_MS = 3000


class AwaitedChannel(PairChannel[FromExecutor]):
    """The core's end.

    Attributes:
        port: where it listens, on all interfaces.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: ServerKeys | None, interface: str = "*") -> None:
        """Listen on a port that nobody uses; with `keys`, only their clients are let in.

        Raises:
            MachineError: there is no port left.
        """
        socket = open_socket(context, zmq.DEALER)
        if keys is not None:
            keys.apply_to(socket)
        _watch(socket)
        try:
            self.port = int(socket.bind_to_random_port(f"tcp://{interface}", min_port=32768, max_port=60999))
        except zmq.ZMQError as exc:
            socket.close()
            raise MachineError(f"Can't listen for executors of other hosts: {exc.strerror}.") from exc
        super().__init__(socket, from_executor)
        self._unsent: deque[bytes] = deque()

    def send(self, message: Message) -> None:
        """Send a message, or keep it until the executor is there; never blocks."""
        self._unsent.append(encode(message))
        self._flush()

    def try_recv(self) -> FromExecutor | None:
        """Return the next message, None if there is none yet."""
        while True:
            try:
                frame = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return None
            if frame != _HERE:
                return self.decode(frame)
            self._flush()

    def _flush(self) -> None:
        while self._unsent:
            try:
                self.socket.send(self._unsent[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._unsent.popleft()


def open_core_channel(
    context: zmq.Context[zmq.Socket[bytes]], address: str, keys: ClientKeys | None
) -> PairChannel[ToExecutor]:
    """Return an executor's end of its conversation with the core, wherever that is.

    Args:
        context: the executor's.
        address: ipc:///path where it waits for a core of its own host, or tcp://host:port where the core waits for it.
        keys: for the latter; None on a network that is trusted.
    """
    if not address.startswith("tcp://"):
        return bind_core(context, address)
    socket = open_socket(context, zmq.DEALER, address)
    if keys is not None:
        keys.apply_to(socket)
    _watch(socket)
    # What a lost connection held is lost with it, so the executor must not come again as if nothing had happened: the
    # core misses its answer, or its host's agent, and replaces it.
    socket.setsockopt(zmq.RECONNECT_IVL, -1)
    socket.connect(address)
    socket.send(_HERE)
    return PairChannel(socket, to_executor)


def _watch(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE_LIMIT_MS)
