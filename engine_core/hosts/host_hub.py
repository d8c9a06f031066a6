"""The core's door for the agents of other hosts.

It has a thread of its own: signs of life go back and forth and deaths become known whatever the core's loop is at, and
the loop need not wake up for them. The thread holds the lock while it changes what both see.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque

import zmq

from pagewire.ipc.channels import open_socket
from pagewire.ipc.codec import encode
from pagewire.ipc.curve import ServerKeys
from pagewire.ipc.errors import MachineError, PagewireError, ProtocolError
from pagewire.ipc.hosts import (
    BEAT_INTERVAL_S,
    HostDismissed,
    HostHello,
    PlacementFailed,
    PlacementPending,
    StartRank,
    ToHost,
    from_host,
)
from pagewire.ipc.zap import Doorkeeper

from .host_registry import HostRegistry, Route
from .remote_process import RemoteProcess

_MAX_MESSAGE_BYTES = 2**20
_LINGER_MS = 500  # for the farewell


class HostHub:
    """Listens for agents; see `HostRegistry` for what becomes of what they say.

    Attributes:
        port: where it listens.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        registry: HostRegistry,
        *,
        interface: str,
        port: int,
        keys: ServerKeys | None,
    ) -> None:
        """Listen, and start the thread.

        Args:
            context: not that of the clients' router: who may connect is decided once a context.
            registry: changed by this hub alone.
            interface: address to listen on, * for all.
            port: to listen on; 0 for one that nobody uses.
            keys: who may connect; None lets everyone in.

        Raises:
            MachineError: the address can't be bound.
        """
        self._registry = registry
        self._lock = threading.Lock()
        self._outbox: deque[tuple[Route, ToHost]] = deque()
        self._pending_reason = ""
        self._failure: PagewireError | None = None
        self._doorkeeper = None if keys is None else Doorkeeper(context, keys.clients)
        self._router = open_socket(context, zmq.ROUTER)
        if keys is not None:
            keys.apply_to(self._router)
        self._router.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        try:
            self._router.bind(f"tcp://{interface}:{port or '*'}")
        except zmq.ZMQError as exc:
            self._close_sockets()
            raise MachineError(
                f"Can't listen for the other hosts at port {port}: {exc.strerror}; give another --master-port."
            ) from exc
        self.port = int(self._router.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self._wake_fd, self._waking_fd = os.pipe()
        self._is_open = True
        self._thread = threading.Thread(target=self._run, name="hosts", daemon=True)
        self._thread.start()

    @property
    def missing(self) -> list[int]:
        """The indices of the hosts that are not there."""
        with self._lock:
            return self._registry.missing

    @property
    def pending_reason(self) -> str:
        """Why whoever places the hosts has not placed them all; empty if it has said nothing."""
        with self._lock:
            return self._pending_reason

    @property
    def failure(self) -> PagewireError | None:
        """Why no hosts will ever be placed; None if they may."""
        with self._lock:
            return self._failure

    @property
    def hosts(self) -> dict[int, HostHello]:
        """What is known of the hosts that are there, by index."""
        with self._lock:
            return {index: host.hello for index, host in self._registry.hosts.items()}

    def start(self, index: int, name: str, order: StartRank) -> RemoteProcess:
        """Have a host start an executor; one that was lost a moment ago returns a process that has ended."""

        def tell(message: ToHost) -> None:
            with self._lock:
                host = self._registry.hosts.get(index)
                if host is not None and (order.executor_epoch, order.rank) in host.processes:
                    self._outbox.append((host.route, message))
            self._wake()

        process = RemoteProcess(name, order.executor_epoch, order.rank, tell)
        with self._lock:
            host = self._registry.add_process(index, order.executor_epoch, order.rank, process)
            if host is not None:
                self._outbox.append((host.route, order))
        self._wake()
        return process

    def close(self, farewell: HostDismissed | None) -> None:
        """Stop listening. Closing twice is fine.

        Args:
            farewell: what the agents are told; None to tell them nothing, so that they wait for the next core.
        """
        if not self._is_open:
            return
        if farewell is not None:
            with self._lock:
                self._outbox += [(host.route, farewell) for host in self._registry.hosts.values()]
        self._is_open = False
        self._wake()
        self._thread.join()
        self._close_sockets()
        os.close(self._wake_fd)
        os.close(self._waking_fd)

    def _close_sockets(self) -> None:
        self._router.close(linger=_LINGER_MS)
        if self._doorkeeper is not None:
            self._doorkeeper.close()

    def _wake(self) -> None:
        os.write(self._waking_fd, b"\0")

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._wake_fd, zmq.POLLIN)
        if self._doorkeeper is not None:
            poller.register(self._doorkeeper.socket, zmq.POLLIN)
        while self._is_open:
            events = dict(poller.poll(int(BEAT_INTERVAL_S * 1000)))
            if self._wake_fd in events:
                os.read(self._wake_fd, 4096)
            now = time.monotonic()
            if self._doorkeeper is not None:
                self._doorkeeper.answer(now)
            with self._lock:
                self._receive(now)
                self._registry.expire(now)
                self._send()

    def _receive(self, now: float) -> None:
        while True:
            try:
                route, *frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = from_host.decode(b"".join(frames))
            except ProtocolError as exc:
                # Of another version, perhaps: a hello is the same in all of them, as far as it says which.
                self._outbox.append((Route(route), HostDismissed(error=exc.to_info())))
                continue
            match message:
                case PlacementPending():
                    self._pending_reason = message.reason
                case PlacementFailed():
                    self._failure = PagewireError.from_info(message.error)
                case _:
                    answer = self._registry.take(Route(route), message, now)
                    if answer is not None:
                        self._outbox.append((Route(route), answer))

    def _send(self) -> None:
        while self._outbox:
            route, message = self._outbox.popleft()
            # Not mandatory: an agent that is gone is given up soon, and there is nothing else to do about it.
            self._router.send_multipart((route, encode(message)), zmq.NOBLOCK)
