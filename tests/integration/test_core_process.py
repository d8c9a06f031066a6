"""The core's life as a process: its start, what is said meanwhile, its stop and its crash."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pagewire.engine_core.engine import Engine
from pagewire.ipc.codec import PROTOCOL_VERSION
from pagewire.ipc.outputs import Goodbye, Ready, StepOutputs
from pagewire.ipc.requests import Hello, Ping
from tests.support.children import is_alive
from tests.support.fake_executor_process import NO_MEMORY, NO_MEMORY_LATER
from tests.support.running_core import request, running_core


def test_ready_says_what_is_served_and_requests_are_answered(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        ready = client.greet()
        assert (ready.info.max_model_len, ready.info.num_blocks) == (200, 64)
        assert ready.info.gpu_memory_utilization == 0.9
        client.send(request(1, 5, 6, 7))
        tokens, end = client.until_end(1)
        assert len(tokens) == 4
        assert end.error is None
        assert core.stop() == 0
        assert isinstance(client.receive(), Goodbye)


@pytest.mark.parametrize(("seed", "core_epoch"), [(NO_MEMORY_LATER, 1), (NO_MEMORY, 2)])
def test_two_failed_starts_in_a_row_are_the_end(monkeypatch, seed: int, core_epoch: int):
    with running_core(monkeypatch, seed=seed, core_epoch=core_epoch) as (core, client):
        client.send(Hello(protocol_version=PROTOCOL_VERSION))
        if core_epoch == 1:
            assert isinstance(client.receive(), Ready)
            os.kill(core.executor_pid, signal.SIGKILL)
        while not isinstance(message := client.receive(), Goodbye):
            pass
        assert "2 starts of the executor in a row" in message.error.message
        assert "no memory left" in message.error.message
        assert core.join() == 1


def test_executor_killed_while_a_later_core_starts_costs_it_nothing(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, core_epoch=2) as (core, client):
        os.kill(core.executor_pid, signal.SIGKILL)
        assert client.greet().core_epoch == 2
        client.send(request(1, 5, 6))
        assert client.until_end(1)[1].error is None


def test_ping_of_an_idle_client_is_answered_before_ready_as_well(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, core_epoch=2) as (core, client):
        os.kill(core.executor_pid, signal.SIGSTOP)
        client.send(Hello(protocol_version=PROTOCOL_VERSION))
        client.send(Ping())
        assert isinstance(client.receive(), Ping)
        os.kill(core.executor_pid, signal.SIGCONT)
        assert isinstance(client.receive(), Ready)
        client.send(Ping())
        assert isinstance(client.receive(), Ping)


def test_stopped_executors_do_not_outlive_the_parent_of_their_core(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        stopped = core.executor_pid
        os.kill(stopped, signal.SIGSTOP)
        core.watch.parent_is_dead = True
        core.stop()
        assert not is_alive(stopped)
        assert not core.runtime_dir.path.exists()


def test_failed_start_reaches_those_who_wait_for_ready(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch, seed=NO_MEMORY) as (core, client):
        client.send(Hello(protocol_version=PROTOCOL_VERSION))
        goodbye = client.receive()
        assert isinstance(goodbye, Goodbye)
        assert goodbye.error.kind == "MachineError"
        assert core.join() == 1


def test_ordered_stop_ends_running_requests_with_their_terminal_message(monkeypatch: pytest.MonkeyPatch):
    with running_core(monkeypatch) as (core, client):
        client.greet()
        client.send(request(1, 5, 6, max_tokens=190))
        while not isinstance(message := client.receive(), StepOutputs) or not message.accepted:
            pass
        assert core.stop() == 0
        _, end = client.until_end(1)
        assert end.error is None or end.error.kind == "EngineDead"
        assert not Path(core.runtime_dir.client_address.removeprefix("ipc://")).exists()


def test_crash_of_the_core_says_nothing_and_leaves_no_executor(monkeypatch: pytest.MonkeyPatch):
    def fail(engine: Engine, now: float) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Engine, "schedule", fail)
    with running_core(monkeypatch) as (core, client):
        client.greet()
        executor = core.executor_pid
        client.send(request(1, 5, 6))
        assert core.join() == 70
        assert not is_alive(executor)
        while client.has_message():
            message = client.receive()
            assert isinstance(message, Ping) or (isinstance(message, StepOutputs) and not message.ends)
