"""An agent obeys its core, and takes a silent one for lost: then it kills what runs and looks for the next."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zmq

from pagewire.gpu_executor.host_agent.agent import HostAgent
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.hosts import (
    ARRIVAL_LIMIT_S,
    SILENCE_LIMIT_S,
    FromHost,
    HostBeat,
    HostDismissed,
    HostHello,
    HostRefused,
    HostWelcome,
    KillRank,
    RankEnded,
    StartRank,
    ToHost,
    WhoAreYou,
)
from pagewire.ipc.process import ChildProcess
from tests.support.children import is_alive, make_importable

HELLO = HostHello(
    version="1", index=1, num_hosts=2, name="b", address="10.0.0.2", model_path="/m", model_fingerprint="f",
    num_cpus=2, num_gpus=0, free_port=5000,
)  # fmt: skip
START = StartRank(executor_epoch=1, rank=1, core_epoch=1, port=1)


class FakeLink:
    """A connection on which the test speaks for the core."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.said: list[FromHost] = []
        self.to_say: list[ToHost] = []

    def send(self, message: FromHost) -> None:
        self.said.append(message)

    def receive(self) -> Iterator[ToHost]:
        while self.to_say:
            yield self.to_say.pop(0)

    def close(self) -> None:
        self.socket.close()


@dataclass
class Watch:
    pipe: tuple[int, int] = field(default_factory=os.pipe)

    @property
    def fds(self) -> list[int]:
        return [self.pipe[0]]


class Bench:
    """An agent on a clock that the test sets; its executors are idle children."""

    def __init__(self) -> None:
        self.now = 0.0
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.links: list[FakeLink] = []
        self.executors: list[ChildProcess] = []
        self.watch = Watch()
        self.agent = HostAgent(HELLO, self._connect, self._start, self.watch, clock=lambda: self.now)

    def _connect(self) -> FakeLink:
        self.links.append(FakeLink(self.context))
        return self.links[-1]

    def _start(self, order: StartRank) -> ChildProcess:
        child = ChildProcess(
            "tests.support.idle_child", name="executor", address="", runtime_dir=Path("/"), log_level="info"
        )
        self.executors.append(child)
        return child

    def hear(self, *messages: ToHost) -> None:
        """Have the agent take in what the core says now."""
        self.links[-1].to_say += messages
        self.agent.turn(0.0)

    def turn_at(self, now: float) -> None:
        self.now = now
        self.agent.turn(0.0)

    def close(self) -> None:
        self.agent._exit_code = 0
        self.agent.run()
        self.context.destroy(linger=0)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    make_importable(monkeypatch)
    bench = Bench()
    yield bench
    bench.close()


def test_agent_says_hello_and_then_that_it_lives(bench: Bench) -> None:
    (hello,) = bench.links[0].said
    assert isinstance(hello, HostHello)
    assert hello.free_port != HELLO.free_port
    bench.hear(HostWelcome())
    bench.turn_at(0.6)
    assert bench.links[0].said[1:] == [HostBeat(), HostBeat()]


def test_executor_is_started_killed_and_reported(bench: Bench) -> None:
    bench.hear(HostWelcome(), START)
    (executor,) = bench.executors
    bench.hear(KillRank(executor_epoch=1, rank=1))
    assert select.select([executor.death_fd], [], [], 10)[0]
    bench.agent.turn(0.0)
    ended = bench.links[0].said[-1]
    assert isinstance(ended, RankEnded)
    assert (ended.executor_epoch, ended.rank, ended.exit_code) == (1, 1, -9)
    bench.hear(KillRank(executor_epoch=1, rank=1))  # it has ended: nothing to do


@pytest.mark.parametrize("is_stranger", [False, True])
def test_lost_core_loses_its_executors_and_the_next_is_looked_for(bench: Bench, is_stranger: bool) -> None:
    bench.hear(HostWelcome(), START)
    (executor,) = bench.executors
    pid = executor.pid
    if is_stranger:
        bench.hear(WhoAreYou())
    else:
        bench.turn_at(SILENCE_LIMIT_S + 0.1)
    assert not is_alive(pid)
    first, second = bench.links
    assert first.socket.closed
    assert isinstance(second.said[0], HostHello)
    bench.hear(HostWelcome(), START)  # the next core finds a host as good as new
    assert len(bench.executors) == 2


def test_agent_whose_core_never_comes_ends_at_its_limit(bench: Bench) -> None:
    for seconds in range(0, int(ARRIVAL_LIMIT_S) + 3, 2):
        assert bench.agent._exit_code is None
        bench.turn_at(float(seconds))
    assert bench.agent._exit_code == 1


@pytest.mark.parametrize(
    ("farewell", "exit_code"),
    [
        (HostDismissed(), 0),
        (HostDismissed(error=ConfigError("bad").to_info()), 2),
        (HostRefused(error=ConfigError("another model").to_info()), 2),
    ],
)
def test_last_word_of_the_core_is_the_agents_exit_code(bench: Bench, farewell: ToHost, exit_code: int) -> None:
    bench.hear(farewell)
    assert bench.agent.run() == exit_code


def test_order_to_stop_ends_the_agent_and_its_executors(bench: Bench) -> None:
    bench.hear(HostWelcome(), START)
    pid = bench.executors[0].pid
    os.write(bench.watch.pipe[1], b"\0")
    assert bench.agent.run() == 0
    assert not is_alive(pid)
