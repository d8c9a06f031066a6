"""The API keys that open the server: from flags and a file, compared so that the time of an answer tells nothing."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from pagewire.ipc.errors import ConfigError
from pagewire.ipc.server_config import ServerConfig


class ApiKeys:
    """A set of keys; an empty one asks nobody for a key.

    Args:
        keys: as clients send them; white space around them doesn't count.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    @property
    def are_needed(self) -> bool:
        """Whether clients must send one."""
        return bool(self._digests)

    def allow(self, authorization: str) -> bool:
        """Return whether an Authorization header brings one of the keys, or none is needed."""
        if not self._digests:
            return True
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return False
        given = _digest(key)
        # All keys are compared, each in constant time.
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return any(matches)


def load_api_keys(config: ServerConfig) -> ApiKeys:
    """Return the keys of the flags and of the key file.

    Raises:
        ConfigError: the file can't be read or holds no key, which would leave the server open.
    """
    if config.api_key_file is None:
        return ApiKeys(config.api_key)
    try:
        lines = Path(config.api_key_file).read_text(encoding="utf-8").splitlines()
    except OSError as exc:
        raise ConfigError(f"--api-key-file {config.api_key_file} can't be read: {exc.strerror}.") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"--api-key-file {config.api_key_file} is not UTF-8 text; write one key a line.") from exc
    keys = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
    if not keys:
        raise ConfigError(f"--api-key-file {config.api_key_file} holds no key; write one a line.")
    return ApiKeys([*config.api_key, *keys])


def _digest(key: str) -> bytes:
    # Digests have one length: comparing them says nothing of a key's length either.
    return hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
