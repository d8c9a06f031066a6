"""Every ZeroMQ address of the project: where sockets live, and which addresses a user may give."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path

from .errors import ConfigError, MachineError

_MAX_IPC_PATH = 107  # bytes of a Unix socket path (sun_path without its end mark)


class RuntimeDir:
    """A fresh directory, readable by this user alone, for the sockets of one engine."""

    def __init__(self, path: Path | None = None) -> None:
        """Make a new directory, or hold `path`, which another process made."""
        self.path = Path(tempfile.mkdtemp(prefix="pagewire-")) if path is None else path
        if len(os.fsencode(self.path / "executor-99999-99999-999.sock")) > _MAX_IPC_PATH:
            self.remove()
            raise MachineError(
                f"The temporary directory {self.path.parent} is too deep for a socket; set TMPDIR to a shorter path."
            )

    @property
    def client_address(self) -> str:
        """Where clients reach the engine core."""
        return f"ipc://{self.path}/core.sock"

    def executor_address(self, core_epoch: int, epoch: int, rank: int) -> str:
        """Where a core reaches one executor: a fresh path per epoch of both, so that no message crosses epochs."""
        return f"ipc://{self.path}/executor-{core_epoch}-{epoch}-{rank}.sock"

    def rendezvous_path(self, core_epoch: int, epoch: int) -> Path:
        """The file in which the ranks of one epoch of executors find each other."""
        return self.path / f"ranks-{core_epoch}-{epoch}"

    def remove_executors(self, core_epoch: int) -> None:
        """Remove the files of a core's executors, which a core that is killed leaves behind."""
        for pattern in (f"executor-{core_epoch}-*.sock", f"ranks-{core_epoch}-*"):
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the directory and all in it; removing twice is fine."""
        shutil.rmtree(self.path, ignore_errors=True)


def ipc_path(address: str) -> Path | None:
    """Return the socket file of an ipc:// address, None for other addresses."""
    return Path(address.removeprefix("ipc://")) if address.startswith("ipc://") else None


def core_address(address: str, data_parallel_rank: int) -> str:
    """Return where one of an engine's cores listens.

    Args:
        address: of the first of them, as users give it.
        data_parallel_rank: which one; those after the first have `.1`, `.2`, ... behind the path, or the next ports.
    """
    if data_parallel_rank == 0:
        return address
    if ipc_path(address) is not None:
        return f"{address}.{data_parallel_rank}"
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + data_parallel_rank}"


def check_listen_address(address: str, *, has_keys: bool = False, insecure: bool = False) -> None:
    """Check an address that a user wants an engine to listen on.

    Args:
        address: as it was given.
        has_keys: whether clients prove theirs.
        insecure: whether the user accepts a network without them.

    Raises:
        ConfigError: it is malformed, or would let in whom nobody meant.
        MachineError: another engine listens there.
    """
    check_address(address, has_keys=has_keys)
    path = ipc_path(address)
    if path is None:
        if not (has_keys or insecure):
            raise ConfigError(
                f"--listen {address} would open the engine to the network without encryption or keys; give --curve-key "
                "and --allow-clients (`pagewire keys make DIR` makes keys), use ipc:///path, or give --insecure if the "
                "network is trusted."
            )
        _check_own_host(address)
        return
    if not path.parent.is_dir():
        raise ConfigError(f"--listen {address}: the directory {path.parent} does not exist; make it first.")
    mode = path.parent.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise ConfigError(
            f"--listen {address}: any user of this machine could put a socket of theirs in its place, as "
            f"{path.parent} is writable for all; choose a directory of your own (chmod 700)."
        )
    if is_in_use(path):
        raise MachineError(f"Another engine listens on {address}; stop it or choose another path.")


def _check_own_host(address: str) -> None:
    """Refuse a host that nobody could connect to, such as the name of an interface."""
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if host == "*":
        return
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        raise ConfigError(
            f"--listen {address}: {host} is no address; give an IP address or host name of this machine, or * for all."
        ) from None


def check_address(address: str, *, has_keys: bool = False) -> None:
    """Check the form of an address.

    Args:
        address: as it was given.
        has_keys: whether both ends are to prove their keys there.

    Raises:
        ConfigError: it is neither ipc:///absolute/path nor tcp://host:port, or no place for keys.
    """
    path = ipc_path(address)
    if path is not None:
        if has_keys:
            raise ConfigError(f"{address} is open to its own user alone and takes no keys; leave them out.")
        if not path.is_absolute():
            raise ConfigError(f"{address} needs an absolute path, as in ipc:///tmp/pagewire.sock.")
        if len(os.fsencode(path)) > _MAX_IPC_PATH:
            raise ConfigError(
                f"{address} is longer than the {_MAX_IPC_PATH} bytes of a socket path; choose a shorter one."
            )
        return
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not (address.startswith("tcp://") and host and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(f"{address} is no address; give ipc:///path/to.sock or tcp://host:port.")


def reachable_address(address: str) -> str:
    """Return where this machine reaches a listener of its own: one on all interfaces is reached by the loopback."""
    for wildcard, loopback in (("*", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")):  # noqa: S104 - compared
        if address.startswith(f"tcp://{wildcard}:"):
            return f"tcp://{loopback}:{address.rpartition(':')[2]}"
    return address


def is_in_use(path: Path) -> bool:
    """Return whether a process listens on a Unix socket; binding would silently take its place."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
