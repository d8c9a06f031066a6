"""Who is attached to the core: greetings, pings, and what to do about clients that left or do not read."""

from __future__ import annotations

import logging

from pagewire.ipc.channels import ClientId, ClientRouter, GoneClient, SlowClient
from pagewire.ipc.codec import PROTOCOL_VERSION
from pagewire.ipc.errors import ErrorInfo, ProtocolError
from pagewire.ipc.outputs import Goodbye
from pagewire.ipc.requests import Hello, Message, Ping

logger = logging.getLogger(__name__)

PING_INTERVAL_S = 0.25


class ClientRegistry:
    """The clients that said a fitting `Hello`, and when each was last sent something."""

    def __init__(self, router: ClientRouter) -> None:
        self._router = router
        self._last_sent: dict[ClientId, float] = {}
        self._lost: list[ClientId] = []

    def __contains__(self, client: ClientId) -> bool:
        return client in self._last_sent

    def greet(self, client: ClientId, hello: Hello, now: float) -> bool:
        """Take in a client whose version fits and return True; send others away."""
        if hello.protocol_version != PROTOCOL_VERSION:
            text = (
                f"this engine speaks protocol version {PROTOCOL_VERSION}, the client version "
                f"{hello.protocol_version}; use the same pagewire version on both sides"
            )
            self.dismiss(client, ProtocolError(text).to_info())
            return False
        self._last_sent[client] = now
        logger.info("client attached: %s", hello.client_name or client.hex())
        return True

    def send(self, client: ClientId, message: Message, now: float) -> None:
        """Send to a client; one that is gone or does not read is noted as lost."""
        try:
            self._router.send(client, message)
        except (GoneClient, SlowClient) as exc:
            if self._last_sent.pop(client, None) is not None:
                level = logging.INFO if isinstance(exc, GoneClient) else logging.WARNING
                logger.log(level, "client %s is no longer served: %s", client.hex(), exc)
                self._lost.append(client)
        else:
            if client in self._last_sent:
                self._last_sent[client] = now

    def dismiss(self, client: ClientId, error: ErrorInfo) -> None:
        """Say `Goodbye` to a client, known or not."""
        self._last_sent.pop(client, None)
        try:
            self._router.send(client, Goodbye(error=error))
        except (GoneClient, SlowClient):
            logger.debug("client %s left before its goodbye", client.hex())

    def dismiss_all(self, error: ErrorInfo) -> None:
        """Say `Goodbye` to every client."""
        for client in list(self._last_sent):
            self.dismiss(client, error)

    def ping(self, clients: set[ClientId], now: float) -> None:
        """Send a `Ping` to those of `clients` that heard nothing for an interval: it finds the dead among them."""
        for client in clients:
            if now - self._last_sent.get(client, now) >= PING_INTERVAL_S:
                self.send(client, Ping(), now)

    def take_lost(self) -> list[ClientId]:
        """Return the clients lost since the last call; their requests are to be aborted."""
        lost, self._lost = self._lost, []
        return lost
