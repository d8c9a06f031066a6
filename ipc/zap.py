"""Who may connect to a listener with keys: ZeroMQ asks, the process that listens answers in its own poll.

There is one such socket a ZeroMQ context, at an address that the protocol fixes; ZeroMQ's own threads ask it once per
connection, in the middle of the handshake, and the connection waits for the answer.

Source: ZAP, rfc.zeromq.org/spec/27.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import zmq
from zmq.utils import z85

from .curve import PublicKey

logger = logging.getLogger(__name__)

_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
_MAX_ANSWERS_A_TURN = 64  # then the loop serves others: a stranger may knock as fast as it likes
_REFUSAL_LOG_INTERVAL_S = 10.0  # ZeroMQ tries again some ten times a second


class Doorkeeper:
    """Lets in the clients of a list and nobody else. Make it before the listener binds, close it after.

    Attributes:
        socket: readable when somebody knocks.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], clients: Mapping[PublicKey, str]) -> None:
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ADDRESS)
        self._clients = clients
        self._next_refusal_log = -math.inf
        self._num_unlogged = 0

    def answer(self, now: float) -> None:
        """Answer those who knocked.

        Args:
            now: seconds of a monotonic clock.
        """
        for _ in range(_MAX_ANSWERS_A_TURN):
            try:
                question = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.socket.send_multipart(self._judge(question, now))

    def close(self) -> None:
        """Close the socket: from here on nobody is let in."""
        self.socket.close()

    def _judge(self, question: list[bytes], now: float) -> list[bytes]:
        # ZeroMQ in this process asks, and nobody else can: what is no question is a bug.
        _, request_id, _, address, _, mechanism, *credentials = question
        place = address.decode("ascii", "replace") or "this machine"
        name = self._clients.get(PublicKey(z85.encode(credentials[0]).decode())) if mechanism == b"CURVE" else None
        if name is None:
            self._log_refusal(place, now)
            return [_VERSION, request_id, b"400", b"this key is not allowed", b"", b""]
        logger.info("the key of %s connects from %s", name, place)
        return [_VERSION, request_id, b"200", b"OK", name.encode(), b""]

    def _log_refusal(self, place: str, now: float) -> None:
        self._num_unlogged += 1
        if now < self._next_refusal_log:
            return
        logger.warning(
            "refused a client at %s: its key is not among --allow-clients (%d refusals since the last such line)",
            place,
            self._num_unlogged,
        )
        self._next_refusal_log, self._num_unlogged = now + _REFUSAL_LOG_INTERVAL_S, 0
