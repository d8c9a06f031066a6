"""Executors at announced work are waited for, and those that only fall silent are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from pagewire.engine_core.executors import supervisor
from pagewire.engine_core.executors.client import ProcessDeath
from pagewire.engine_core.executors.death import ExecutorDeath
from pagewire.engine_core.executors.placer import PlacedRank
from pagewire.engine_core.executors.supervisor import ExecutorSupervisor
from pagewire.ipc.config import EngineConfig, SupervisionConfig
from pagewire.ipc.errors import ErrorInfo, ExecutorDied, MachineError, PagewireError, ProtocolError, RankLost
from pagewire.ipc.parallel_config import ParallelConfig
from pagewire.ipc.requests import Message
from pagewire.ipc.steps import ExecuteStep, ExecutorBusy, ExecutorFailed, ExecutorReady, FromExecutor, StepResult

STALL_LIMIT_S = 3.0


class FakeGroup:
    """Executors that say what a test has them say, and end when they are told to."""

    def __init__(self, *args: object, epoch: int, **options: object) -> None:
        self.epoch = epoch
        self.sent: list[Message] = []
        self.deaths: list[ProcessDeath] = []
        self.say_later: list[tuple[int, FromExecutor]] = []  # while the supervisor waits
        self._said: list[tuple[int, FromExecutor]] = []

    def say(self, rank: int, *messages: FromExecutor) -> None:
        self._said += [(rank, message) for message in messages]

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def drain(self) -> Iterator[tuple[int, FromExecutor]]:
        while self._said:
            yield self._said.pop(0)

    def find_deaths(self) -> list[ProcessDeath]:
        return self.deaths

    def wait_for_news(self, timeout_s: float, *, of_deaths: bool = False) -> None:
        self.say_later, news = [], self.say_later
        self._said += news

    def begin_kill(self) -> None:
        self._said.clear()

    def reap(self) -> bool:
        return True


class NoPlacer:
    """Nothing is ever placed: the groups are fakes. Hosts are there when a test says so."""

    def __init__(self) -> None:
        self.has_hosts = True
        self.failure: MachineError | None = None

    def await_hosts(self, now: float) -> bool:
        if self.failure is not None:
            raise self.failure
        return self.has_hosts

    def place(self, epoch: int) -> list[PlacedRank]:
        raise NotImplementedError

    def clear(self, epoch: int) -> None:
        raise NotImplementedError

    def dismiss(self, error: ErrorInfo | None) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Bench:
    """A supervisor whose executors load, on a clock that the test sets."""

    def __init__(self, *, pp: int = 1, tp: int = 1, engine_index: int = 0, has_hosts: bool = True) -> None:
        self.now = 0.0
        self._num_steps = 0
        self.placer = NoPlacer()
        self.placer.has_hosts = has_hosts
        parallel = ParallelConfig(pipeline_parallel_size=pp, tensor_parallel_size=tp, data_parallel_rank=engine_index)
        self.mesh = parallel.mesh
        self.supervisor = ExecutorSupervisor(
            self.placer,
            EngineConfig(supervision=SupervisionConfig(stall_limit=STALL_LIMIT_S), parallel=parallel),
            zmq.Poller(),
            core_epoch=1,
            num_blocks=None,
            now=self.now,
        )

    @property
    def group(self) -> FakeGroup:
        group = self.supervisor._group
        assert isinstance(group, FakeGroup)
        return group

    def become_ready(self) -> None:
        for rank in range(self.mesh.world_size):
            assert not self.supervisor.takes_steps
            self.rank_is_ready(rank)
        assert self.supervisor.takes_steps

    def rank_is_ready(self, rank: int, *, num_blocks: int = 9) -> list[FromExecutor]:
        ready = ExecutorReady(
            executor_epoch=self.group.epoch,
            num_blocks=num_blocks,
            device="cuda",
            dtype="float16",
            kv_cache_dtype="float16",
            memory=f"of rank {rank}",
        )
        return self.hear(ready, rank=rank)

    def send(self) -> None:
        self._num_steps += 1
        self.supervisor.send(ExecuteStep(executor_epoch=self.group.epoch, step_id=self._num_steps), self.now)

    def hear(self, *messages: FromExecutor, rank: int = 0) -> list[FromExecutor]:
        """Return what the loop is told of it."""
        self.group.say(rank, *messages)
        told = list(self.supervisor.receive(self.now))
        assert all(not isinstance(message, ExecutorBusy) for message in told)
        return told

    def answer(self, step_id: int, rank: int = 0) -> None:
        self.hear(StepResult(executor_epoch=self.group.epoch, step_id=step_id), rank=rank)

    def announce(self, limit_s: float, rank: int = 0) -> None:
        self.hear(ExecutorBusy(executor_epoch=self.group.epoch, reason="capturing a graph", limit_s=limit_s), rank=rank)

    def fail(self, rank: int, error: PagewireError) -> None:
        self.hear(ExecutorFailed(executor_epoch=self.group.epoch, error=error.to_info()), rank=rank)

    def end(self) -> ExecutorDeath:
        """Play the loop's part with a group that is lost."""
        assert self.supervisor.is_lost(self.now)
        list(self.supervisor.receive(self.now))
        return self.supervisor.end(self.now)

    def is_lost_after(self, seconds: float) -> bool:
        """Let time pass as the core's loop sees it, several looks a second."""
        for _ in range(round(seconds * 4)):
            self.now += 0.25
            if self.supervisor.is_lost(self.now):
                return True
        return False


@pytest.fixture(autouse=True)
def fake_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "ExecutorGroup", FakeGroup)


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.become_ready()
    return bench


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


def test_group_is_ready_when_its_last_rank_is_and_speaks_by_its_output_rank():
    bench = Bench(pp=2, tp=2)
    assert [bench.rank_is_ready(rank) for rank in (2, 0, 3)] == [[], [], []]
    assert not bench.supervisor.takes_steps
    (ready,) = bench.rank_is_ready(1)
    assert isinstance(ready, ExecutorReady)
    assert ready.memory == "of rank 2"
    assert bench.supervisor.takes_steps


def test_ranks_with_unequal_pools_are_condemned():
    bench = Bench(tp=2)
    bench.rank_is_ready(0)
    bench.rank_is_ready(1, num_blocks=8)
    assert not bench.supervisor.takes_steps
    assert bench.end().text == "executor 1 has 8 KV blocks and executor 0 9; all need as many"


def test_rank_of_a_later_group_must_have_the_pool_that_the_first_one_settled():
    bench = Bench(tp=2)
    bench.become_ready()
    bench.supervisor.condemn("it lied")
    bench.end()
    bench.supervisor.go_on(bench.now)
    bench.rank_is_ready(1, num_blocks=8)
    assert bench.end().text == "executor 1 has 8 KV blocks and was given 9"


def test_only_the_output_rank_answers_steps_and_only_those_it_was_sent():
    bench = Bench(pp=2)
    bench.become_ready()
    with pytest.raises(ProtocolError, match="executor 1 answered a step that it was not sent"):
        bench.answer(1, rank=1)
    bench.send()
    bench.answer(1, rank=1)
    bench.send()
    with pytest.raises(ProtocolError, match="executor 0 answered a step; that is executor 1's part"):
        bench.answer(2, rank=0)


def test_each_rank_has_to_give_signs_of_life_while_it_loads():
    bench = Bench(tp=2)
    bench.announce(limit_s=100, rank=0)
    bench.announce(limit_s=10, rank=1)
    assert not bench.is_lost_after(10)
    assert bench.is_lost_after(0.5)
    assert "executor 1 gave no sign of life while it started for 10 s" in bench.end().text


def test_rank_that_is_ready_may_be_silent_while_another_loads():
    bench = Bench(tp=2)
    bench.rank_is_ready(1)
    bench.announce(limit_s=100, rank=0)
    assert not bench.is_lost_after(99)
    bench.rank_is_ready(0)
    assert bench.supervisor.takes_steps
    assert not bench.supervisor.needs_attention


def test_group_is_busy_until_the_last_of_its_ranks_is_done():
    bench = Bench(tp=2)
    bench.become_ready()
    bench.send()
    bench.announce(limit_s=10, rank=0)
    bench.announce(limit_s=20, rank=1)
    bench.announce(limit_s=0, rank=0)
    assert not bench.is_lost_after(20 + STALL_LIMIT_S)
    bench.announce(limit_s=0, rank=1)
    assert not bench.is_lost_after(STALL_LIMIT_S)
    assert bench.is_lost_after(0.5)
    assert "executor 0 did not answer a step" in bench.end().text


def test_killed_rank_is_the_cause_though_others_complain_first():
    bench = Bench(tp=2)
    bench.become_ready()
    bench.fail(0, RankLost("executor 1 is gone"))
    bench.group.deaths.append(ProcessDeath(1, "executor 1 was killed by signal 9", -9))
    death = bench.end()
    assert (death.text, death.came_from_outside) == ("executor 1 was killed by signal 9", True)


def test_failure_is_the_cause_though_the_loss_of_its_rank_was_told_before():
    bench = Bench(tp=2)
    bench.become_ready()
    bench.fail(0, RankLost("executor 1 is gone"))
    bench.group.say_later = [(1, ExecutorFailed(executor_epoch=1, error=ExecutorDied("a bug").to_info()))]
    bench.group.deaths.append(ProcessDeath(0, "executor 0 was killed by signal 6", -6))
    death = bench.end()
    assert (death.text, death.came_from_outside) == ("executor 1 failed: a bug", False)


def test_last_words_of_a_rank_that_ended_are_waited_for():
    bench = Bench(tp=2)
    bench.group.deaths.append(ProcessDeath(1, "executor 1 ended with exit code 1", 1))
    bench.group.say_later = [(1, ExecutorFailed(executor_epoch=1, error=MachineError("No memory.").to_info()))]
    death = bench.end()
    assert death.text == "executor 1 failed: No memory."
    assert isinstance(death.final, MachineError), "the first start is the user's: what is wrong is told as it is"


def test_loss_that_nobody_owns_up_to_is_told_by_whom_it_met():
    bench = Bench(tp=2)
    bench.become_ready()
    bench.fail(0, RankLost("executor 1 is gone"))
    death = bench.end()
    assert death.text == "executor 0 failed: executor 1 is gone"
    assert death.came_from_outside  # with its host, as nothing else is known of its end


def test_ranks_are_called_what_their_processes_are_where_engines_share_a_host():
    bench = Bench(tp=2, engine_index=1)
    bench.become_ready()
    bench.fail(1, ExecutorDied("a bug"))
    assert bench.end().text == "executor 3 failed: a bug"


def test_group_is_placed_once_its_hosts_are_there():
    bench = Bench(tp=2, has_hosts=False)
    assert bench.supervisor.go_on(bench.now) is None
    assert bench.supervisor.needs_attention
    assert not bench.supervisor.is_lost(1000.0)  # nothing runs: nobody is silent
    assert list(bench.supervisor.receive(bench.now)) == []
    bench.supervisor.stop()
    bench.placer.has_hosts = True
    assert bench.supervisor.go_on(bench.now) is None
    assert bench.supervisor.epoch == 1
    bench.become_ready()
    assert not bench.supervisor.needs_attention


def test_group_that_was_lost_with_its_host_waits_for_the_next_one():
    bench = Bench(tp=2)
    bench.become_ready()
    bench.placer.has_hosts = False
    bench.group.deaths = [ProcessDeath(1, "executor 1 on b was lost with host 1 (b)", -9)]
    assert bench.supervisor.is_lost(bench.now)
    assert bench.end().came_from_outside
    assert bench.supervisor.go_on(bench.now) is None
    assert bench.supervisor.epoch == 1
    bench.placer.has_hosts = True
    bench.supervisor.go_on(bench.now)
    assert bench.supervisor.epoch == 2


def test_hosts_that_never_come_are_the_end():
    bench = Bench(has_hosts=False)
    bench.placer.failure = MachineError("host 1 has not come")
    assert bench.supervisor.go_on(bench.now) is bench.placer.failure
