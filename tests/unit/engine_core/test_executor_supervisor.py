"""Executors at announced work are waited for, and those that only fall silent are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from pagewire.engine_core import executor_supervisor
from pagewire.engine_core.executor_client import ProcessDeath
from pagewire.engine_core.executor_supervisor import ExecutorSupervisor
from pagewire.ipc.config import EngineConfig, SupervisionConfig
from pagewire.ipc.endpoints import RuntimeDir
from pagewire.ipc.requests import Message
from pagewire.ipc.steps import ExecuteStep, ExecutorBusy, ExecutorReady, FromExecutor, StepResult

STALL_LIMIT_S = 3.0


class FakeGroup:
    """Executors that say what a test has them say, and end when they are told to."""

    def __init__(self, *args: object, epoch: int, **options: object) -> None:
        self.epoch = epoch
        self.sent: list[Message] = []
        self._said: list[FromExecutor] = []

    def say(self, *messages: FromExecutor) -> None:
        self._said += messages

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def drain(self) -> Iterator[FromExecutor]:
        while self._said:
            yield self._said.pop(0)

    def find_death(self) -> ProcessDeath | None:
        return None

    def begin_kill(self) -> None:
        self._said.clear()

    def reap(self) -> bool:
        return True


class Bench:
    """A supervisor whose executors serve, on a clock that the test sets."""

    def __init__(self, runtime_dir: RuntimeDir) -> None:
        self.now = 0.0
        self._num_steps = 0
        self.supervisor = ExecutorSupervisor(
            zmq.Context.instance(),
            runtime_dir,
            EngineConfig(supervision=SupervisionConfig(stall_limit=STALL_LIMIT_S)),
            zmq.Poller(),
            core_epoch=1,
            num_blocks=None,
            module="none",
            now=self.now,
        )
        self.become_ready()

    @property
    def group(self) -> FakeGroup:
        group = self.supervisor._group
        assert isinstance(group, FakeGroup)
        return group

    def become_ready(self) -> None:
        ready = ExecutorReady(
            executor_epoch=self.group.epoch, num_blocks=9, device="cuda", dtype="float16", kv_cache_dtype="float16"
        )
        self.hear(ready)
        assert self.supervisor.takes_steps

    def send(self) -> None:
        self._num_steps += 1
        self.supervisor.send(ExecuteStep(executor_epoch=self.group.epoch, step_id=self._num_steps), self.now)

    def hear(self, *messages: FromExecutor) -> None:
        self.group.say(*messages)
        assert all(not isinstance(message, ExecutorBusy) for message in self.supervisor.receive(self.now))

    def answer(self, step_id: int) -> None:
        self.hear(StepResult(executor_epoch=self.group.epoch, step_id=step_id))

    def announce(self, limit_s: float) -> None:
        self.hear(ExecutorBusy(executor_epoch=self.group.epoch, reason="capturing a graph", limit_s=limit_s))

    def is_lost_after(self, seconds: float) -> bool:
        """Let time pass as the core's loop sees it, several looks a second."""
        for _ in range(round(seconds * 4)):
            self.now += 0.25
            if self.supervisor.is_lost(self.now):
                return True
        return False


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(executor_supervisor, "ExecutorGroup", FakeGroup)
    runtime_dir = RuntimeDir()
    yield Bench(runtime_dir)
    runtime_dir.remove()


def test_silent_executor_that_owes_a_step_is_lost_and_an_idle_one_is_not(bench: Bench):
    assert not bench.is_lost_after(60)
    bench.send()
    assert not bench.is_lost_after(STALL_LIMIT_S)
    assert bench.is_lost_after(0.5)
    assert "did not answer a step for 3 s (--stall-limit)" in bench.supervisor.end(bench.now).text


def test_capture_while_a_step_is_owed_is_no_stall(bench: Bench):
    bench.send()
    bench.announce(limit_s=10)
    assert not bench.is_lost_after(10 + STALL_LIMIT_S)
    bench.answer(1)
    assert not bench.supervisor.needs_attention


def test_capture_that_began_idle_puts_off_the_step_that_comes_meanwhile(bench: Bench):
    bench.announce(limit_s=10)
    assert not bench.supervisor.needs_attention, "an idle engine may sleep"
    assert not bench.is_lost_after(2)
    bench.send()
    assert not bench.is_lost_after(8 + STALL_LIMIT_S)
    bench.answer(1)
    bench.send()
    assert not bench.is_lost_after(STALL_LIMIT_S)
    assert bench.is_lost_after(0.5), "the next step has its usual time"


def test_capture_between_two_steps_in_flight_is_not_over_with_the_first_ones_answer(bench: Bench):
    bench.send()
    bench.send()
    bench.announce(limit_s=10)
    bench.answer(1)
    assert not bench.is_lost_after(10 + STALL_LIMIT_S)
    bench.answer(2)


def test_executor_that_hangs_in_announced_work_is_lost_after_it(bench: Bench):
    bench.send()
    bench.announce(limit_s=10)
    assert not bench.is_lost_after(10 + STALL_LIMIT_S)
    assert bench.is_lost_after(0.5)
    assert "did not answer a step for 13 s" in bench.supervisor.end(bench.now).text


def test_successor_owes_nothing_of_what_its_predecessor_announced(bench: Bench):
    bench.announce(limit_s=1000)
    bench.supervisor.condemn("it lied")
    assert bench.supervisor.is_lost(bench.now)
    bench.supervisor.end(bench.now)
    bench.supervisor.go_on(bench.now)
    bench.become_ready()
    bench.send()
    assert not bench.is_lost_after(STALL_LIMIT_S)
    assert bench.is_lost_after(0.5)
