"""An executor may end at any moment, also before it was ever reached: the core learns of it and never waits for it."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator

import pytest
import zmq

from pagewire.engine_core.executor_client import ExecutorGroup
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.endpoints import RuntimeDir
from pagewire.ipc.steps import ExecuteStep
from tests.support.children import make_importable

DEADLINE_S = 10.0


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExecutorGroup]:
    """A process that never opens its socket: what the core sees of an executor that dies while it starts."""
    make_importable(monkeypatch)
    runtime_dir, context = RuntimeDir(), zmq.Context[zmq.Socket[bytes]]()
    group = ExecutorGroup(context, runtime_dir, EngineConfig(), epoch=1, module="tests.support.idle_child")
    yield group
    group.stop()
    context.term()
    runtime_dir.remove()


def test_executor_that_dies_before_it_is_reached_is_named(group: ExecutorGroup) -> None:
    assert group.find_death() is None
    (process,) = group._processes
    os.kill(process.pid, signal.SIGKILL)
    assert select.select([process.death_fd], [], [], DEADLINE_S)[0]
    assert group.find_death() == "executor 0 was killed by signal 9 (out of memory?)"
    group.send(ExecuteStep(executor_epoch=1, step_id=1))  # does not wait for a peer
    assert list(group.drain()) == []
