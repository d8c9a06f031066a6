"""Executor processes that share one model, on sockets as their core has them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from pagewire.ipc.mesh import Mesh
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, ExecutorFailed, ExecutorReady, ScheduledRow, Shutdown
from tests.support.rank_driver import DEADLINE_S, RankProcesses, config_of
from tests.support.runner import Row, RunnerDriver, make_runner
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow  # each rank is a process that imports torch


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Iterator[RankProcesses]:
    ranks = RankProcesses(config_of(tiny_checkpoint(), request.param))
    yield ranks
    ranks.close()


def greedy_rows() -> list[Row]:
    return [
        Row(1, [5, 6, 7, 8, 9, 10], Sampling(temperature=0.0), [1, 2, 3]),
        Row(2, [9, 8], Sampling(temperature=0.0), [4, 5]),
    ]


@pytest.mark.parametrize("ranks", [Mesh(tp=2), Mesh(pp=2)], indirect=True, ids=str)
def test_two_processes_draw_the_tokens_of_one_and_end_in_order(ranks: RankProcesses) -> None:
    check_tokens(ranks)
    for channel in ranks.channels:
        channel.send(Shutdown())
    assert [process.wait(DEADLINE_S) for process in ranks.processes] == [0, 0]


@pytest.mark.parametrize("ranks", [Mesh(pp=2, tp=2)], indirect=True, ids=str)
def test_four_processes_draw_the_tokens_of_one_and_name_a_lost_rank(ranks: RankProcesses) -> None:
    check_tokens(ranks)
    pid = ranks.processes[0].pid
    os.kill(pid, signal.SIGKILL)
    assert ranks.processes[0].wait(DEADLINE_S) == -signal.SIGKILL
    step = ExecuteStep(executor_epoch=1, step_id=100, rows=[ScheduledRow(1, 10, 1, drawn_token_ids=[5])])
    for rank in (1, 2, 3):
        ranks.channels[rank].send(step)
    failed = ranks.next_answer(2)  # the one that was killed sends it the stream
    assert isinstance(failed, ExecutorFailed)
    assert failed.error.kind == "RankLost"
    for rank in (1, 3):  # what they wait for does not come: they obey, in whatever they do
        ranks.processes[rank].ask_to_stop()
    assert all(ranks.processes[rank].wait(DEADLINE_S) is not None for rank in (1, 2, 3))


def check_tokens(ranks: RankProcesses) -> None:
    assert all(isinstance(ready, ExecutorReady) for ready in ranks.ready), ranks.ready
    alone, together = greedy_rows(), greedy_rows()
    RunnerDriver(make_runner(tiny_checkpoint())).run(alone, num_tokens=5, chunk=4)
    RunnerDriver(ranks).run(together, num_tokens=5, chunk=4)  # type: ignore[arg-type]
    assert [row.tokens for row in together] == [row.tokens for row in alone]
