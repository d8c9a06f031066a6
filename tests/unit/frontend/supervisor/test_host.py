"""A host keeps an agent running until it has its last word, and ends it at a signal."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pagewire.frontend.supervisor.host import _keep_running, _signals
from pagewire.ipc.errors import MachineError
from pagewire.ipc.process import ChildProcess
from pagewire.ipc.restart_budget import RestartBudget
from tests.support.children import is_alive, make_importable


class Agents:
    """Agents that end by themselves, are killed at once, or run until they are stopped."""

    def __init__(self, *fates: str) -> None:
        self._fates = list(fates)
        self.pids: list[int] = []

    def start(self) -> ChildProcess:
        fate = self._fates.pop(0)
        name = fate if fate == "exit 3" else "agent"
        child = ChildProcess("tests.support.idle_child", name=name, address="", runtime_dir=Path("/"), log_level="info")
        self.pids.append(child.pid)
        if fate == "kill":
            child.begin_kill()
        return child


@pytest.fixture
def pipe() -> tuple[int, int]:
    return os.pipe()


def test_killed_agent_is_replaced_and_the_last_word_of_the_next_counts(
    monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]
) -> None:
    make_importable(monkeypatch)
    agents = Agents("kill", "exit 3")
    assert _keep_running(agents.start, pipe[0], RestartBudget("the agent", 5)) == 3
    assert len(agents.pids) == 2


def test_agents_that_are_killed_again_and_again_are_given_up(
    monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]
) -> None:
    make_importable(monkeypatch)
    agents = Agents("kill", "kill", "kill")
    with pytest.raises(MachineError, match=r"This host gives up: .* 2 times in a row .*killed by signal 9"):
        _keep_running(agents.start, pipe[0], RestartBudget("the agent", 1))


def test_signal_stops_the_agent_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    make_importable(monkeypatch)
    agents = Agents("run")
    with _signals() as stop_fd:
        os.kill(os.getpid(), signal.SIGTERM)
        assert _keep_running(agents.start, stop_fd, RestartBudget("the agent", 1)) == 0
    assert not is_alive(agents.pids[0])
