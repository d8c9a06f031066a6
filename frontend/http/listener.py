"""The HTTP server's sockets, bound before anything is loaded: a taken port is found in milliseconds."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pagewire.ipc.endpoints import is_in_use
from pagewire.ipc.errors import MachineError
from pagewire.ipc.server_config import ServerConfig

from .access.api_keys import load_api_keys
from .access.tls import load_tls

BACKLOG = 2048  # connections that may wait while a burst is accepted

# Linux divides the connections to a port among the sockets that listen on it; elsewhere frontends share one socket.
_DIVIDES_CONNECTIONS = sys.platform == "linux"


@contextmanager
def open_listeners(config: ServerConfig) -> Iterator[list[socket.socket]]:
    """Bind what the server will listen on: a Unix socket, or every address of the host.

    Requests wait in the kernel's queue until they are accepted. A socket file is removed at the end. The files that
    the server will need, its certificate and its keys, are tried as well: later, somebody would have waited for them.

    For several frontends the sockets are what `take_listeners` makes those of each from: where the kernel divides
    connections among sockets of one port, they only hold the port.

    Raises:
        ConfigError: a file can't be used.
        MachineError: the address is taken, or not this machine's.
    """
    load_tls(config)
    load_api_keys(config)
    allow_many_connections()
    try:
        if config.uds is not None:
            sockets = [_bind_unix(Path(config.uds))]
        else:
            sockets = _bind_tcp(config.host, config.port)
            if config.api_server_count > 1 and _DIVIDES_CONNECTIONS:
                sockets = [_hold(sock) for sock in sockets]
    except OSError as exc:
        where, flags = (config.uds, "--uds") if config.uds else (f"{config.host}:{config.port}", "--port or --host")
        raise MachineError(
            f"Can't listen on {where}: {exc.strerror or exc}. Stop what listens there, or choose another {flags}."
        ) from exc
    try:
        yield sockets
    finally:
        for sock in sockets:
            sock.close()
        if config.uds is not None:
            Path(config.uds).unlink(missing_ok=True)


def take_listeners(fds: Iterable[int]) -> list[socket.socket]:
    """Return the sockets that one of several frontends listens on.

    Args:
        fds: descriptors of those of `open_listeners`, which this process has inherited.

    Raises:
        MachineError: another program has taken the port meanwhile.
    """
    sockets = []
    for fd in fds:
        sock = socket.socket(fileno=fd)
        if sock.family != socket.AF_UNIX and _DIVIDES_CONNECTIONS:
            try:
                own = _bind_beside(sock.family, sock.getsockname())
                own.listen(BACKLOG)
            except OSError as exc:
                raise MachineError(f"Can't listen on {sock.getsockname()}: {exc.strerror or exc}.") from exc
            finally:
                sock.close()
            sock = own
        sockets.append(sock)
    return sockets


def allow_many_connections() -> None:
    """Raise the soft limit of open files to the hard one: each request under way is a connection."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS calls the hard limit infinite and refuses it; then the soft one has to do.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def describe_listeners(sockets: Sequence[socket.socket], *, is_tls: bool = False) -> str:
    """Return where clients reach the server: a URL, or the path of a Unix socket."""
    first = sockets[0]
    if first.family == socket.AF_UNIX:
        return f"unix:{first.getsockname()}"
    host, port = first.getsockname()[:2]
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{host}]:{port}" if first.family == socket.AF_INET6 else f"{scheme}://{host}:{port}"


def _bind_tcp(host: str, port: int) -> list[socket.socket]:
    infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with ExitStack() as on_failure:
        sockets = []
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            sock = socket.socket(family, kind, protocol)
            on_failure.callback(sock.close)
            # A server restarts on its port although connections of the last one are still being wound up.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
            sockets.append(sock)
        on_failure.pop_all()
    return sockets


def _hold(sock: socket.socket) -> socket.socket:
    """Return a socket that holds the port of `sock`, which is closed, for others to listen there.

    That was bound alone, so that no program that listens on the port already goes unnoticed.
    """
    family, address = sock.family, sock.getsockname()
    sock.close()
    return _bind_beside(family, address)


def _bind_beside(family: int, address: tuple[str, int]) -> socket.socket:
    """Return a socket of a port that others of this user's programs have bound in this way as well."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _bind_unix(path: Path) -> socket.socket:
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not is_in_use(path):
        path.unlink()  # left by a server that was killed
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(os.fspath(path))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
