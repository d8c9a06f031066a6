"""An agent's connection to the core: fresh for each core, so that nothing that was said to one reaches another."""

from __future__ import annotations

from collections.abc import Iterator

import zmq

from pagewire.ipc.channels import open_socket
from pagewire.ipc.codec import encode
from pagewire.ipc.curve import ClientKeys
from pagewire.ipc.errors import ProtocolError
from pagewire.ipc.hosts import FromHost, HostDismissed, ToHost, to_host

_RECONNECT_MS = 200


class CoreLink:
    """What an agent says and hears, as long as it takes the core for the same one.

    Args:
        context: the agent's.
        address: where the core listens for agents, tcp://host:port.
        keys: with which; None on a network that is trusted.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, keys: ClientKeys | None) -> None:
        self.socket = open_socket(context, zmq.DEALER, address)
        if keys is not None:
            keys.apply_to(self.socket)
        self.socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self.socket.connect(address)

    def send(self, message: FromHost) -> None:
        """Send a message, or keep it until there is a connection; what does not fit any more is dropped."""
        try:
            self.socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return  # a thousand signs of life wait already: the core is as good as lost

    def receive(self) -> Iterator[ToHost]:
        """Yield what has come; what can't be read is the core's farewell, as it is of another version."""
        while True:
            try:
                frame = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                yield to_host.decode(frame)
            except ProtocolError as exc:
                yield HostDismissed(error=exc.to_info())

    def close(self) -> None:
        """Close the connection; what waits to be sent is dropped."""
        self.socket.close()
