"""Key files: `NAME.key` with a public key for others, `NAME.key_secret` with both for its owner.

They have the form that ZeroMQ's other tools read and write (certificates of CZMQ and pyzmq).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import zmq.auth

from pagewire.ipc.curve import ClientKeys, KeyPair, PublicKey, ServerKeys, check_key, key_pair, make_keys
from pagewire.ipc.errors import ConfigError, MachineError

_PUBLIC, _SECRET = ".key", ".key_secret"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # it becomes a file's name, and stands in the engine's log

_BANNER = """#   Made on {date} by pagewire
#   ZeroMQ CURVE {kind} certificate
#   {advice}

metadata
curve
"""


def make_key_files(directory: Path, names: Sequence[str]) -> list[Path]:
    """Write fresh keys for each name; return the files.

    Args:
        directory: is made, for this user alone, if there is none.
        names: of the processes that get keys.

    Raises:
        ConfigError: a name can't be a file's, or its files are there already: then none is written.
        MachineError: the files can't be written.
    """
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is no name for keys; use 1 to 64 letters, digits, dots, dashes, underscores.")
        for path in (directory / f"{name}{_PUBLIC}", directory / f"{name}{_SECRET}"):
            if path.exists():
                raise ConfigError(f"{path} exists already; choose another name, or remove it first.")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return [path for name in names for path in _write_pair(directory, name)]
    except OSError as exc:
        raise MachineError(f"Can't write keys to {directory}: {exc.strerror}.") from exc


def read_client_keys(engine_key: str | os.PathLike[str], client_key: str | os.PathLike[str]) -> ClientKeys:
    """Read what a client needs to attach to an engine that listens on tcp:// with keys.

    Args:
        engine_key: file of the engine's public key.
        client_key: file of the client's own secret key; the engine must allow its public one.

    Raises:
        ConfigError: a file can't be read, holds no such key, holds a secret that others can read, or can be changed by
            them.
    """
    return ClientKeys(own=_read_pair(Path(client_key)), server=_read_public(Path(engine_key)))


def read_server_keys(engine_key: str | os.PathLike[str], clients: Iterable[str | os.PathLike[str]]) -> ServerKeys:
    """Read what an engine needs to listen on tcp:// with keys.

    Args:
        engine_key: file of the engine's own secret key.
        clients: files of the public keys that may attach, and directories of such files (`*.key`).

    Raises:
        ConfigError: as `read_client_keys`; or a directory holds no key.
    """
    files = [file for path in clients for file in _public_files(Path(path))]
    return ServerKeys(own=_read_pair(Path(engine_key)), clients={_read_public(file): file.stem for file in files})


def _write_pair(directory: Path, name: str) -> tuple[Path, Path]:
    pair = make_keys()
    date = datetime.now(UTC).date().isoformat()
    public, secret = directory / f"{name}{_PUBLIC}", directory / f"{name}{_SECRET}"
    public_line = f'    public-key = "{pair.public}"\n'
    # The secret first: without it the public one is of no use.
    _write(
        secret,
        0o600,
        _BANNER.format(date=date, kind="SECRET", advice="Keep it to the process that it names.")
        + public_line
        + f'    secret-key = "{pair.secret}"\n',
    )
    _write(
        public,
        0o644,
        _BANNER.format(date=date, kind="public", advice="Give it to those who talk to that process, unaltered.")
        + public_line,
    )
    return public, secret


def _write(path: Path, mode: int, text: str) -> None:
    # A new file, never one that somebody has opened or linked before.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)


def _public_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    _refuse_open_to_writers(path)
    files = sorted(path.glob(f"*{_PUBLIC}"))
    if not files:
        raise ConfigError(f"the directory {path} holds no *{_PUBLIC} file; put the clients' public keys there.")
    return files


def _read_public(path: Path) -> PublicKey:
    public, _ = _read(path)
    _refuse_open_to_writers(path)
    return PublicKey(public)


def _refuse_open_to_writers(path: Path) -> None:
    if path.stat().st_mode & stat.S_IWOTH:
        raise ConfigError(f"any user of this machine could put a key of theirs into {path}; run chmod o-w {path}.")


def _read_pair(path: Path) -> KeyPair:
    public, secret = _read(path)
    if secret is None:
        raise ConfigError(f"{path} holds no secret key; give the file that ends in {_SECRET}.")
    # The owner's group may read it: so orchestrators hand secrets to processes that do not run as root.
    if stat.S_IMODE(path.stat().st_mode) & stat.S_IRWXO:
        raise ConfigError(f"{path} can be read by any user of this machine; run chmod 600 {path}, or make keys anew.")
    pair = key_pair(secret)
    if pair.public != public:
        raise ConfigError(f"{path} holds a public and a secret key that are no pair; make keys anew.")
    return pair


def _read(path: Path) -> tuple[str, str | None]:
    """Return the public key of a file, and the secret one if it holds one."""
    try:
        keys = zmq.auth.load_certificate(path)
        public, secret = (None if key is None else key.decode("ascii") for key in keys)
        assert public is not None
        for key in (public, secret):
            if key is not None:
                check_key(key)
    except OSError as exc:
        raise ConfigError(f"the key file {path} can't be read: {exc.strerror or 'there is no such file'}.") from exc
    except ValueError as exc:
        raise ConfigError(f"{path} is no key file; `pagewire keys make` makes one.") from exc
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc.message}") from exc
    return public, secret
