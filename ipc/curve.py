"""Keys of tcp:// sockets: both ends prove theirs, and all that passes between them is encrypted (ZeroMQ's CURVE).

The end that connects knows the public key of the one that listens; the one that listens lets in the keys of a list,
which `Doorkeeper` keeps. Keys come from files that a user made (`pagewire keys make`), or are made for one run and
handed to both ends by whoever starts them.

Source: CurveZMQ, rfc.zeromq.org/spec/26.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NewType

import msgspec
import zmq
from zmq.utils import z85

from .errors import ConfigError, MachineError

PublicKey = NewType("PublicKey", str)  # 32 bytes of Curve25519 as 40 characters of Z85

_KEY_BYTES = 32
# What ZeroMQ tells the connecting end of a handshake that failed: an event and its detail.
_NOT_ALLOWED = (int(zmq.EVENT_HANDSHAKE_FAILED_AUTH), 400)
_OTHER_MECHANISM = (int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL), int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH))
_HANDSHAKE_LIMIT_MS = 5000  # a peer that opens connections and says nothing holds each no longer
# The domain itself means nothing. With one that is enforced, a listener without a Doorkeeper lets nobody in; without,
# ZeroMQ would let in everybody.
_ZAP_DOMAIN = b"pagewire"


class KeyPair(msgspec.Struct, frozen=True, kw_only=True):
    """The two keys of one process. The secret one never shows in a log or a traceback.

    Attributes:
        public: names the process to its peers.
        secret: Z85 as well; whoever has it is the process.
    """

    public: PublicKey
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


class ClientKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What the connecting end of a socket needs.

    Attributes:
        own: its keys; the listening end must know the public one.
        server: the public key of the listening end. One that can't prove it gets nothing.
    """

    own: KeyPair
    server: PublicKey

    def apply_to(self, socket: zmq.Socket[bytes]) -> None:
        """Have a socket use the keys; before it connects."""
        _require_curve()
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.own.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.own.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.server.encode())


class ServerKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What the listening end of a socket needs.

    Attributes:
        own: its keys.
        clients: the keys that may connect, and the name of each for the log.
    """

    own: KeyPair
    clients: Mapping[PublicKey, str]

    def apply_to(self, socket: zmq.Socket[bytes]) -> None:
        """Have a socket use the keys and ask the `Doorkeeper` of its context; before it binds."""
        _require_curve()
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.own.secret.encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, _ZAP_DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_LIMIT_MS)

    def with_client(self, name: str) -> tuple[ServerKeys, ClientKeys]:
        """Let one more client in, with keys that are made for it now; return what each end needs."""
        pair = make_keys()
        keys = ServerKeys(own=self.own, clients={**self.clients, pair.public: name})
        return keys, ClientKeys(own=pair, server=self.own.public)


def make_keys() -> KeyPair:
    """Return fresh keys.

    Raises:
        MachineError: the ZeroMQ library here has no cryptography.
    """
    _require_curve()
    public, secret = zmq.curve_keypair()
    return KeyPair(public=PublicKey(public.decode()), secret=secret.decode())


def key_pair(secret: str) -> KeyPair:
    """Return the pair that a secret key is half of.

    Raises:
        ConfigError: it is no key.
    """
    _require_curve()
    check_key(secret)
    return KeyPair(public=PublicKey(zmq.curve_public(secret.encode()).decode()), secret=secret)


def check_key(text: str) -> None:
    """Check the form of a key, public or secret. The error does not show it: the two look alike.

    Raises:
        ConfigError: it is no key.
    """
    try:
        num_bytes = len(z85.decode(text))
    except (ValueError, KeyError, struct.error):
        num_bytes = 0
    if num_bytes != _KEY_BYTES:
        raise ConfigError(f"a key has 40 characters of Z85, got {len(text)} that are no key; make keys anew.")


def explain_refusal(event: int, detail: int, *, has_keys: bool) -> str:
    """Return why the listening end does not let this one in, for good; "" for a break that may pass.

    An end that has a wrong public key of the other is not told: the other can't read what it says, and hangs up.

    Args:
        event: what ZeroMQ reports of the connecting socket.
        detail: the event's value.
        has_keys: whether the connecting end has keys.
    """
    if (event, detail) == _NOT_ALLOWED:
        return "its --allow-clients do not name this client's key"
    if (event, detail) == _OTHER_MECHANISM:
        if has_keys:
            return "it listens without keys, and this client has some; leave them out if the network is trusted"
        return "it wants keys; give its public and your own secret one (--engine-key and --curve-key, or keys=...)"
    return ""


def _require_curve() -> None:
    if not zmq.has("curve"):
        raise MachineError("This ZeroMQ library has no CURVE: install pyzmq from its wheel, or use ipc:// addresses.")
