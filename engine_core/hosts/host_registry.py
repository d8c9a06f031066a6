"""Which hosts there are, what runs on them, and when one counts as lost.

It has no sockets and no clock: it is told what came over which connection and what time it is, and returns what is to
be sent.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType

import msgspec

from pagewire.ipc.errors import ConfigError
from pagewire.ipc.hosts import (
    BEAT_INTERVAL_S,
    SILENCE_LIMIT_S,
    HostBeat,
    HostHello,
    HostRefused,
    HostWelcome,
    RankEnded,
    ToHost,
    WhoAreYou,
)
from pagewire.version import __version__

from .remote_process import RemoteProcess

logger = logging.getLogger(__name__)

# After a longer pause this process was stopped itself, and could not have heard anybody.
_MAX_PAUSE_S = 2 * BEAT_INTERVAL_S

Route = NewType("Route", bytes)  # the routing id that ZeroMQ gives an agent's connection
_RankKey = tuple[int, int]  # executor epoch, rank


@dataclass
class Host:
    """A host whose agent is there.

    Attributes:
        hello: what its agent has said of it last.
        route: its connection.
        last_heard: when it gave its last sign of life.
        processes: of the executors that were started there and have not ended.
    """

    hello: HostHello
    route: Route
    last_heard: float
    processes: dict[_RankKey, RemoteProcess] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The host as texts name it."""
        return f"host {self.hello.index} ({self.hello.name})"


class HostRegistry:
    """The hosts of one engine.

    Args:
        indices: of the hosts that have an agent.
        num_hosts: of the engine, as agents count them.
        model_fingerprint: of the model that the core has.
    """

    def __init__(self, indices: range, *, num_hosts: int, model_fingerprint: str) -> None:
        self._indices = indices
        self._num_hosts = num_hosts
        self._model_fingerprint = model_fingerprint
        self._hosts: dict[int, Host] = {}
        self._last_look = math.inf

    @property
    def hosts(self) -> Mapping[int, Host]:
        """Those that are there, by index."""
        return self._hosts

    @property
    def missing(self) -> list[int]:
        """The indices of those that are not there."""
        return [index for index in self._indices if index not in self._hosts]

    def take(self, route: Route, message: HostHello | HostBeat | RankEnded, now: float) -> ToHost | None:
        """Take in what an agent says; return the answer, None if there is none.

        Args:
            route: the connection that it came over.
            message: what it says.
            now: seconds of a monotonic clock.
        """
        if isinstance(message, HostHello):
            return self._greet(route, message, now)
        host = self._find(route)
        if host is None:
            return WhoAreYou()
        host.last_heard = now
        if isinstance(message, HostBeat):
            return message
        host.hello = msgspec.structs.replace(host.hello, free_port=message.free_port)
        process = host.processes.pop((message.executor_epoch, message.rank), None)
        if process is not None:
            process.note_end(message.exit_code)
        return None

    def add_process(self, index: int, executor_epoch: int, rank: int, process: RemoteProcess) -> Host | None:
        """Note that an executor is started on a host; return the host, None if it was lost a moment ago."""
        host = self._hosts.get(index)
        if host is None:
            process.note_loss(f"host {index}")
            return None
        host.processes[executor_epoch, rank] = process
        return host

    def expire(self, now: float) -> None:
        """Give up those that have been silent for too long; what they have sent must have been taken in before."""
        pause_s = now - self._last_look
        if pause_s > _MAX_PAUSE_S:
            for host in self._hosts.values():
                host.last_heard += pause_s
        self._last_look = now
        for host in list(self._hosts.values()):
            silence_s = now - host.last_heard
            if silence_s > SILENCE_LIMIT_S:
                self._lose(host, f"it has said nothing for {silence_s:.1f} s")

    def _greet(self, route: Route, hello: HostHello, now: float) -> ToHost | None:
        fault = self._find_fault(hello)
        if fault is not None:
            logger.error("refused host %d (%s): %s", hello.index, hello.name, fault)
            return HostRefused(error=ConfigError(fault).to_info())
        before = self._hosts.get(hello.index)
        if before is not None and before.route != route:
            if before.hello.name != hello.name:
                # It may be the successor of one that is about to be given up; it asks again.
                logger.warning("%s says that it is %s as well; give each its own --node-rank", hello.name, before.text)
                return None
            self._lose(before, "its agent was started anew")
        host = self._hosts[hello.index] = Host(hello, route, now)
        logger.info("%s is there: %d CPUs, %d GPUs", host.text, hello.num_cpus, hello.num_gpus)
        return HostWelcome()

    def _find_fault(self, hello: HostHello) -> str | None:
        if hello.version != __version__:
            return f"it runs pagewire {hello.version}, and host 0 {__version__}; install the same version on all hosts."
        if hello.num_hosts != self._num_hosts:
            return f"it was given --nnodes {hello.num_hosts}, and host 0 {self._num_hosts}; give all the same."
        if hello.index not in self._indices:
            first, last = self._indices[0], self._indices[-1]
            return f"--node-rank {hello.index} must be from {first} to {last}."
        if hello.model_fingerprint != self._model_fingerprint:
            return f"its model at {hello.model_path} is another one than that of host 0; give all the same model."
        return None

    def _find(self, route: Route) -> Host | None:
        return next((host for host in self._hosts.values() if host.route == route), None)

    def _lose(self, host: Host, why: str) -> None:
        logger.error("%s is lost: %s", host.text, why)
        del self._hosts[host.hello.index]
        for process in host.processes.values():
            process.note_loss(host.text)
