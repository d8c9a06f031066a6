"""Places the ranks of an engine on several hosts: in order, as many on each."""

from __future__ import annotations

import contextlib
import logging
import socket
from dataclasses import dataclass

import zmq

from pagewire.ipc.awaited_channel import AwaitedChannel
from pagewire.ipc.cluster_keys import ClusterKeys
from pagewire.ipc.errors import ErrorInfo, MachineError
from pagewire.ipc.hosts import ARRIVAL_LIMIT_S, HostDismissed, HostHello, StartRank
from pagewire.ipc.steps import RankPlacement

from ..executors.placer import LocalPlacer, PlacedRank
from .host_hub import HostHub
from .host_registry import HostRegistry
from .placement_helper import PlacementHelper

logger = logging.getLogger(__name__)

_REMINDER_S = 30.0
_FAREWELL_MS = 500


@dataclass(frozen=True, slots=True)
class Seating:
    """Which rank goes to which host.

    Attributes:
        agents: the indices of the hosts that have an agent.
        num_hosts: hosts of the engine.
        ranks_per_host: on each of them.
        master_addr: the core's host as the others reach it, where the ranks meet; empty if they meet where rank 0 is.
    """

    agents: range
    num_hosts: int
    ranks_per_host: int
    master_addr: str = ""


class HostsPlacer:
    """An `ExecutorPlacer` over the agents of hosts; the core's own host, if it has ranks, needs none."""

    def __init__(
        self,
        seating: Seating,
        local: LocalPlacer | None,
        keys: ClusterKeys | None,
        model_fingerprint: str,
        *,
        core_epoch: int,
        interface: str = "*",
        port: int = 0,
        helper: PlacementHelper | None = None,
    ) -> None:
        """Listen for the agents.

        Args:
            seating: which rank goes where.
            local: starts the ranks of host 0, if that is the core's.
            keys: of the hosts; None lets everyone in.
            model_fingerprint: of the model that the core has.
            core_epoch: of the core.
            interface: address to listen on, * for all.
            port: where agents come to; 0 for one that nobody uses.
            helper: brings the hosts; None if they come by themselves.

        Raises:
            MachineError: the address can't be bound.
        """
        self._seating = seating
        self._local = local
        self._keys = None if keys is None else keys.for_core()
        self._core_epoch = core_epoch
        self._interface = interface
        self._helper = helper
        # One of their own: who may connect is decided once a context, and the clients' router has another list.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        registry = HostRegistry(seating.agents, num_hosts=seating.num_hosts, model_fingerprint=model_fingerprint)
        try:
            self._hub = HostHub(self._context, registry, interface=interface, port=port, keys=self._keys)
        except MachineError:
            self._context.term()
            raise
        self._waiting_since: float | None = None
        self._next_reminder = 0.0

    def await_hosts(self, now: float) -> bool:
        """See `ExecutorPlacer`."""
        failure = self._hub.failure
        if failure is not None:
            raise MachineError(failure.message)
        if self._helper is not None:
            self._helper.keep_running(self._hub.port)
        missing = self._hub.missing
        if not missing:
            self._waiting_since = None
            return True
        if self._waiting_since is None:
            self._waiting_since = self._next_reminder = now
        waited_s = now - self._waiting_since
        if waited_s > ARRIVAL_LIMIT_S:
            raise MachineError(f"{self._describe(missing)} within {ARRIVAL_LIMIT_S:g} s.")
        if now >= self._next_reminder:
            logger.info("%s yet; waiting up to %.0f s more", self._describe(missing), ARRIVAL_LIMIT_S - waited_s)
            self._next_reminder = now + _REMINDER_S
        return False

    def place(self, epoch: int) -> list[PlacedRank]:
        """See `ExecutorPlacer`."""
        hosts = self._hub.hosts
        meeting = self._meeting_point(hosts)
        num_ranks = self._seating.num_hosts * self._seating.ranks_per_host
        return [self._start(epoch, rank, hosts, meeting) for rank in range(num_ranks)]

    def clear(self, epoch: int) -> None:
        """See `ExecutorPlacer`."""
        if self._local is not None:
            self._local.clear(epoch)

    def dismiss(self, error: ErrorInfo | None) -> None:
        """See `ExecutorPlacer`."""
        self._hub.close(HostDismissed(error=error))

    def close(self) -> None:
        """See `ExecutorPlacer`: agents that were not dismissed wait for the next core."""
        self._hub.close(None)
        if self._helper is not None:
            self._helper.stop()
        self._context.destroy(linger=_FAREWELL_MS)

    def _start(self, epoch: int, rank: int, hosts: dict[int, HostHello], meeting: str) -> PlacedRank:
        index, place = divmod(rank, self._seating.ranks_per_host)
        if index not in self._seating.agents:
            assert self._local is not None, "a host without an agent is the core's own"
            return self._local.start(
                epoch,
                RankPlacement(
                    rank=rank, index_on_host=place, num_on_host=self._seating.ranks_per_host, rendezvous=meeting
                ),
            )
        channel = AwaitedChannel(self._context, self._keys, self._interface)
        hello = hosts.get(index)
        name = f"executor {rank} on host {index}" if hello is None else f"executor {rank} on {hello.name}"
        order = StartRank(executor_epoch=epoch, rank=rank, core_epoch=self._core_epoch, port=channel.port)
        process = self._hub.start(index, name, order)
        placement = RankPlacement(
            rank=rank,
            index_on_host=place if hello is None else hello.index_on_host + place,
            num_on_host=(hello.num_on_host if hello is not None else 0) or self._seating.ranks_per_host,
            rendezvous=meeting,
        )
        return PlacedRank(placement, channel, process, model_path="" if hello is None else hello.model_path)

    def _meeting_point(self, hosts: dict[int, HostHello]) -> str:
        """Return where the ranks of an epoch meet: a port of rank 0's host that nobody uses, another one each time."""
        if self._seating.num_hosts * self._seating.ranks_per_host == 1:
            return ""
        if self._seating.master_addr:
            return _tcp_address(self._seating.master_addr, _free_port())
        first = hosts.get(0)
        # It was there a moment ago; if it is not any more, its rank has ended and nobody comes to meet.
        return "tcp://127.0.0.1:1" if first is None else _tcp_address(first.address, first.free_port)

    def _describe(self, missing: list[int]) -> str:
        if self._helper is not None:
            reason = self._hub.pending_reason
            return f"{len(missing)} of {self._seating.num_hosts} executors have no place{reason and f' ({reason})'}"
        names = ", ".join(f"host {index} (--node-rank {index})" for index in missing)
        return f"{names} {'has' if len(missing) == 1 else 'have'} not come"


def _tcp_address(host: str, port: int) -> str:
    with contextlib.suppress(OSError):
        socket.inet_pton(socket.AF_INET6, host)
        host = f"[{host}]"
    return f"tcp://{host}:{port}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
