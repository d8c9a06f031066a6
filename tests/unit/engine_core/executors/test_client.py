"""An executor may end at any moment, also before it was ever reached: the core learns of it and never waits for it."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator

import pytest
import zmq

from pagewire.engine_core.executors.client import ExecutorGroup
from pagewire.engine_core.executors.placer import LocalPlacer
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.endpoints import RuntimeDir
from pagewire.ipc.process import ChildProcess
from pagewire.ipc.steps import ExecuteStep
from tests.support.children import is_alive, make_importable

DEADLINE_S = 10.0


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExecutorGroup]:
    """A process that never opens its socket: what the core sees of an executor that dies while it starts."""
    make_importable(monkeypatch)
    runtime_dir, context = RuntimeDir(), zmq.Context[zmq.Socket[bytes]]()
    config = EngineConfig()
    placer = LocalPlacer(context, runtime_dir, config, core_epoch=1, module="tests.support.idle_child")
    group = ExecutorGroup(placer, config, zmq.Poller(), epoch=1)
    yield group
    group.kill()
    context.term()
    runtime_dir.remove()


def process_of(group: ExecutorGroup) -> ChildProcess:
    (rank,) = group._ranks.values()
    assert isinstance(rank.process, ChildProcess)
    return rank.process


def test_executor_that_dies_before_it_is_reached_is_named(group: ExecutorGroup) -> None:
    assert group.find_deaths() == []
    process = process_of(group)
    os.kill(process.pid, signal.SIGKILL)
    assert select.select([process.death_fd], [], [], DEADLINE_S)[0]
    assert group.find_deaths() == [(0, "executor 0 was killed by signal 9 (out of memory?)", -9)]
    group.send(ExecuteStep(executor_epoch=1, step_id=1))  # does not wait for a peer
    assert list(group.drain()) == []


def test_killed_group_is_reaped_without_waiting_and_leaves_nothing_to_poll(group: ExecutorGroup) -> None:
    process = process_of(group)
    os.kill(process.pid, signal.SIGSTOP)
    group.begin_kill()
    assert select.select([process.death_fd], [], [], DEADLINE_S)[0]
    assert group.reap()
    assert group._poller.sockets == []
    assert not is_alive(process.pid)


def test_stopped_process_holds_up_an_ordered_stop_for_a_moment_only(group: ExecutorGroup) -> None:
    process = process_of(group)
    os.kill(process.pid, signal.SIGSTOP)
    group.stop()
    assert not is_alive(process.pid)
    assert group._poller.sockets == []
