"""The HTTP server's sockets, bound before anything is loaded: a taken port is found in milliseconds."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pagewire.ipc.endpoints import is_in_use
from pagewire.ipc.errors import MachineError
from pagewire.ipc.server_config import ServerConfig

from .access.api_keys import load_api_keys
from .access.tls import load_tls

BACKLOG = 2048  # connections that may wait while a burst is accepted


@contextmanager
def open_listeners(config: ServerConfig) -> Iterator[list[socket.socket]]:
    """Bind what the server will listen on: a Unix socket, or every address of the host.

    Requests wait in the kernel's queue until they are accepted. A socket file is removed at the end. The files that
    the server will need, its certificate and its keys, are tried as well: later, somebody would have waited for them.

    Raises:
        ConfigError: a file can't be used.
        MachineError: the address is taken, or not this machine's.
    """
    load_tls(config)
    load_api_keys(config)
    allow_many_connections()
    try:
        sockets = [_bind_unix(Path(config.uds))] if config.uds is not None else _bind_tcp(config.host, config.port)
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
