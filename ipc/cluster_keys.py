"""The keys of an engine that is spread over hosts: its core listens, agents and executors of other hosts connect.

One pair is the core's, one that of all hosts: whoever has it may take the place of any of them. Hosts that are started
one by one (--nnodes) derive both from one secret that each of them is given; where somebody starts them all, the keys
are made for the run.
"""

from __future__ import annotations

import hashlib

import msgspec
from zmq.utils import z85

from .curve import ClientKeys, KeyPair, ServerKeys, key_pair, make_keys
from .errors import ConfigError

CLUSTER_KEY_VARIABLE = "PAGEWIRE_CLUSTER_KEY"
"""The environment variable that holds the secret; no child inherits it."""
MIN_SECRET_LENGTH = 16
_HOSTS = "the hosts of this engine"
# A secret may be a phrase that a person chose: a guess of it costs some 50 ms.
_SCRYPT_COST = {"n": 2**14, "r": 8, "p": 1}
_SALT = b"pagewire cluster keys, version 1"  # the same on all hosts, which share nothing but the secret
_KEY_BYTES = 32


class ClusterKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Both pairs, as the core has them.

    Attributes:
        core: the core's own.
        host: that of all agents and executors on other hosts.
    """

    core: KeyPair
    host: KeyPair

    def for_core(self) -> ServerKeys:
        """Return what the end that listens needs."""
        return ServerKeys(own=self.core, clients={self.host.public: _HOSTS})

    def for_host(self) -> ClientKeys:
        """Return what an end that connects needs."""
        return ClientKeys(own=self.host, server=self.core.public)


def make_cluster_keys() -> ClusterKeys:
    """Return fresh keys.

    Raises:
        MachineError: the ZeroMQ library here has no cryptography.
    """
    return ClusterKeys(core=make_keys(), host=make_keys())


def derive_cluster_keys(secret: str) -> ClusterKeys:
    """Return the keys that a secret stands for: the same on every host.

    Raises:
        ConfigError: the secret is so short that it could be guessed.
        MachineError: the ZeroMQ library here has no cryptography.
    """
    if len(secret) < MIN_SECRET_LENGTH:
        raise ConfigError(
            f"the cluster key has {len(secret)} characters and needs {MIN_SECRET_LENGTH}; "
            "make one by `openssl rand -hex 32` and give the same to every host."
        )
    derived = hashlib.scrypt(secret.encode(), salt=_SALT, dklen=2 * _KEY_BYTES, **_SCRYPT_COST)
    core, host = (key_pair(z85.encode(part).decode("ascii")) for part in (derived[:_KEY_BYTES], derived[_KEY_BYTES:]))
    return ClusterKeys(core=core, host=host)
