"""A placer waits for its hosts, says for whom, and gives up at its limit; the agents here are bare sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from pagewire.engine_core.executors.placer import PlacedRank
from pagewire.engine_core.hosts.hosts_placer import HostsPlacer, Seating
from pagewire.ipc.awaited_channel import AwaitedChannel
from pagewire.ipc.channels import open_socket
from pagewire.ipc.cluster_keys import make_cluster_keys
from pagewire.ipc.codec import encode
from pagewire.ipc.errors import ConfigError, MachineError
from pagewire.ipc.hosts import (
    ARRIVAL_LIMIT_S,
    FromHost,
    HostDismissed,
    HostHello,
    HostWelcome,
    PlacementFailed,
    PlacementPending,
    RankEnded,
    StartRank,
    ToHost,
    to_host,
)
from pagewire.version import __version__
from tests.support.children import wait_until

KEYS = make_cluster_keys()
WAIT_MS = 10_000


class FakeHelper:
    """Brings nobody."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self.is_stopped = False

    def keep_running(self, port: int) -> None:
        self.ports.append(port)

    def stop(self) -> None:
        self.is_stopped = True


class Agent:
    """An agent's socket."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], placer: HostsPlacer) -> None:
        self._socket = open_socket(context, zmq.DEALER)
        KEYS.for_host().apply_to(self._socket)
        self._socket.connect(f"tcp://127.0.0.1:{placer._hub.port}")

    def say(self, message: FromHost) -> None:
        self._socket.send(encode(message))

    def hear(self) -> ToHost:
        assert self._socket.poll(WAIT_MS), "the core says nothing"
        return to_host.decode(self._socket.recv())


@contextmanager
def placing(num_hosts: int = 2, helper: FakeHelper | None = None) -> Iterator[tuple[HostsPlacer, Agent]]:
    placer = HostsPlacer(
        Seating(agents=range(num_hosts), num_hosts=num_hosts, ranks_per_host=1),
        None,
        KEYS,
        "f",
        core_epoch=1,
        interface="127.0.0.1",
        helper=helper,
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield placer, Agent(context, placer)
    finally:
        placer.close()
        context.destroy(linger=0)


def port_of(rank: PlacedRank) -> int:
    assert isinstance(rank.channel, AwaitedChannel)
    return rank.channel.port


def hello(index: int) -> HostHello:
    return HostHello(
        version=__version__, index=index, num_hosts=2, name=f"h{index}", address="10.0.0.9", model_path=f"/m{index}",
        model_fingerprint="f", num_cpus=2, num_gpus=0, free_port=5000 + index,
    )  # fmt: skip


def test_hosts_that_never_come_are_named_at_the_limit() -> None:
    with placing() as (placer, _):
        assert not placer.await_hosts(100.0)
        assert not placer.await_hosts(100.0 + ARRIVAL_LIMIT_S)
        with pytest.raises(MachineError, match=r"host 0 \(--node-rank 0\), host 1 .* have not come within 600 s"):
            placer.await_hosts(100.1 + ARRIVAL_LIMIT_S)


def test_what_keeps_a_placement_waiting_is_told() -> None:
    with placing(helper=FakeHelper()) as (placer, agent):
        placer.await_hosts(0.0)
        agent.say(PlacementPending(reason="Ray has no room"))
        wait_until(lambda: placer._hub.pending_reason != "", 10, "the news")
        with pytest.raises(MachineError, match=r"2 of 2 executors have no place \(Ray has no room\)"):
            placer.await_hosts(1.0 + ARRIVAL_LIMIT_S)


def test_placement_that_failed_is_final() -> None:
    helper = FakeHelper()
    with placing(helper=helper) as (placer, agent):
        agent.say(PlacementFailed(error=ConfigError("no cluster").to_info()))
        wait_until(lambda: placer._hub.failure is not None, 10, "the news")
        with pytest.raises(MachineError, match="no cluster"):
            placer.await_hosts(0.0)
        assert helper.ports == []
    assert helper.is_stopped


def test_ranks_meet_where_rank_0_is_and_elsewhere_the_next_time() -> None:
    with placing() as (placer, agent):
        other = Agent(agent._socket.context, placer)
        for index, each in enumerate((agent, other)):
            each.say(hello(index))
            assert each.hear() == HostWelcome()
        assert placer.await_hosts(0.0)
        first, second = placed = placer.place(1)
        assert first.placement.rendezvous == second.placement.rendezvous == "tcp://10.0.0.9:5000"
        assert (first.model_path, second.model_path) == ("/m0", "/m1")
        assert second.process.name == "executor 1 on h1"
        assert other.hear() == StartRank(executor_epoch=1, rank=1, core_epoch=1, port=port_of(second))
        agent.say(RankEnded(executor_epoch=1, rank=0, exit_code=-9, free_port=6000))
        assert first.process.wait(10) == -9
        placed += placer.place(2)
        assert [rank.placement.rendezvous for rank in placed[2:]] == ["tcp://10.0.0.9:6000"] * 2
        for rank in placed:
            rank.channel.close()
            rank.process.close()
        placer.dismiss(None)
        while (farewell := other.hear()) != HostDismissed():
            assert isinstance(farewell, StartRank)


def test_port_that_is_taken_is_named() -> None:
    with placing() as (placer, _), pytest.raises(MachineError, match=r"port .*give another --master-port"):
        HostsPlacer(
            Seating(agents=range(1), num_hosts=1, ranks_per_host=1),
            None,
            KEYS,
            "f",
            core_epoch=1,
            interface="127.0.0.1",
            port=placer._hub.port,
        )
