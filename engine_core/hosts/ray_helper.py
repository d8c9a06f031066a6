"""Ray's client as a process: `python -m pagewire.engine_core.hosts.ray_helper`, started by the core.

It ends with the core, and Ray then ends what it has placed.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

import ray
import zmq

from pagewire.ipc.channels import open_socket
from pagewire.ipc.codec import encode
from pagewire.ipc.errors import ConfigError, MachineError, ProtocolError
from pagewire.ipc.hosts import FromHost, PlacementFailed
from pagewire.ipc.logs import setup_logging
from pagewire.ipc.process import Bootstrap, die_with_parent, read_bootstrap

from .ray_hosts import RayHosts

logger = logging.getLogger("pagewire.engine_core.hosts.ray_helper")  # __name__ is __main__ here


def main() -> int:
    """Keep agents running until the core ends this process; return the exit code."""
    try:
        bootstrap = read_bootstrap()
    except ProtocolError as exc:
        sys.stderr.write(f"{exc.message}\n")
        return ConfigError.exit_code
    setup_logging(bootstrap.name, bootstrap.log_level, bootstrap.log_format)
    die_with_parent(bootstrap)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = open_socket(context, zmq.DEALER)
    if bootstrap.client_keys is not None:
        bootstrap.client_keys.apply_to(socket)
    socket.connect(bootstrap.address)

    def tell(message: FromHost) -> None:
        socket.send(encode(message))

    try:
        _place(bootstrap, tell)
    except MachineError as exc:
        tell(PlacementFailed(error=exc.to_info()))
    threading.Event().wait()  # the core reads why, and ends this process
    return MachineError.exit_code


def _place(bootstrap: Bootstrap, tell: Callable[[FromHost], None]) -> None:
    """Keep agents running.

    Raises:
        MachineError: there is no cluster, or agents can't run there.
    """
    assert bootstrap.config is not None, "it is told the engine's config"
    try:
        ray.init(address="auto", logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ValueError) as exc:
        reason = str(exc).partition("\n")[0].rstrip(". ")
        raise MachineError(
            f"No Ray cluster can be reached from here ({reason}): run `ray start --head` on this host, or set "
            "RAY_ADDRESS."
        ) from exc
    own_address = ray.util.get_node_ip_address()
    port = urlsplit(bootstrap.address).port
    RayHosts(bootstrap.config, f"tcp://{own_address}:{port}", bootstrap.client_keys, tell).run()


if __name__ == "__main__":
    sys.exit(main())
