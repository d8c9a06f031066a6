"""Who is attached to the core: greetings, pings, and what to do about clients that left or do not read."""

from __future__ import annotations

import logging
from collections.abc import Container

from pagewire.ipc.channels import ClientId, ClientRouter, GoneClient, SlowClient
from pagewire.ipc.codec import PROTOCOL_VERSION
from pagewire.ipc.errors import ClientGivenUp, ErrorInfo, ProtocolError
from pagewire.ipc.outputs import Goodbye
from pagewire.ipc.requests import Hello, Message, Ping

logger = logging.getLogger(__name__)

PING_INTERVAL_S = 0.25
# An idle client that leaves says nothing: whenever the clients have doubled, all are pinged and the dead are found.
_FIRST_SWEEP_AT = 64
_MAX_REMEMBERED_REASONS = 256


class ClientRegistry:
    """The clients that said a fitting `Hello`, and when each was last sent something."""

    def __init__(self, router: ClientRouter) -> None:
        self._router = router
        self._last_sent: dict[ClientId, float] = {}
        self._lost: list[ClientId] = []
        self._reasons: dict[ClientId, ErrorInfo] = {}  # of lost clients, to be told if they speak again
        self._sweep_at = _FIRST_SWEEP_AT

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
        self._reasons.pop(client, None)
        logger.info("client attached: %s", hello.client_name or client.hex())
        if len(self._last_sent) >= self._sweep_at:
            self.send_to_all(Ping(), now)
            self._sweep_at = max(_FIRST_SWEEP_AT, 2 * len(self._last_sent))
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
                self._remember(client, exc)
        else:
            if client in self._last_sent:
                self._last_sent[client] = now

    def send_to_all(self, message: Message, now: float, *, but: Container[ClientId] = ()) -> None:
        """Send to every client except those in `but`."""
        for client in list(self._last_sent):
            if client not in but:
                self.send(client, message, now)

    def dismiss_stranger(self, client: ClientId) -> None:
        """Say `Goodbye` to one who has not said `Hello`, or was given up since; the latter hears why.

        Both may attach anew: that of all those given up only the last ones are remembered is no fault of theirs.
        """
        unknown = ClientGivenUp("this engine does not know the client: say Hello and wait for Ready first").to_info()
        if self.dismiss(client, self._reasons.get(client, unknown)):
            self._reasons.pop(client, None)

    def dismiss(self, client: ClientId, error: ErrorInfo) -> bool:
        """Say `Goodbye` to a client, known or not; return whether it will hear no more of it.

        One that does not read can't be told yet, and is to be told when it speaks again.
        """
        self._last_sent.pop(client, None)
        try:
            self._router.send(client, Goodbye(error=error))
        except GoneClient:
            logger.debug("client %s left before its goodbye", client.hex())
        except SlowClient:
            logger.debug("client %s does not read, and has not got its goodbye yet", client.hex())
            return False
        return True

    def dismiss_all(self, error: ErrorInfo) -> None:
        """Say `Goodbye` to every client."""
        for client in list(self._last_sent):
            self.dismiss(client, error)

    def ping(self, clients: set[ClientId], now: float) -> None:
        """Send a `Ping` to those of `clients` that heard nothing for an interval: it finds the dead among them."""
        for client in clients:
            if now - self._last_sent.get(client, now) >= PING_INTERVAL_S:
                self.send(client, Ping(), now)

    def _remember(self, client: ClientId, reason: SlowClient | GoneClient) -> None:
        text = f"this client was given up: {reason.message}; its requests were aborted, attach anew"
        self._reasons[client] = ClientGivenUp(text).to_info()
        if len(self._reasons) > _MAX_REMEMBERED_REASONS:
            del self._reasons[next(iter(self._reasons))]

    def take_lost(self) -> list[ClientId]:
        """Return the clients lost since the last call; their requests are to be aborted."""
        lost, self._lost = self._lost, []
        return lost
