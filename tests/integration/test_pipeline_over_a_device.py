"""Core, pipeline and device at work at the same time, each in a thread: whoever comes first, answers are the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import zmq

from pagewire.gpu_executor.core_inbox import CoreInbox
from pagewire.gpu_executor.step_pipeline import StepPipeline
from pagewire.ipc.channels import PairChannel, open_socket
from pagewire.ipc.codec import from_executor, to_executor
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, ScheduledRow, Shutdown
from tests.support.launching_ahead import AheadRunner
from tests.support.runner import Row, RunnerDriver, make_runner
from tests.support.tiny_model import tiny_checkpoint

DEADLINE_S = 60.0
NUM_TOKENS = 20
PROMPT = [5, 6, 7, 8, 9, 10]
SAMPLINGS = (
    Sampling(temperature=0.0, num_logprobs=1),
    Sampling(temperature=1.0, seed=42, num_logprobs=2),
    Sampling(temperature=0.8, seed=-1, repetition_penalty=1.2, num_logprobs=0),
)


class Worker:
    """The pipeline's worker, over a runner whose device works by itself."""

    max_steps_in_flight = 2
    is_output_rank = True
    background_fd = None

    def __init__(self, runner):
        self._runner = runner
        self.launch = runner.launch

    def take_background_answers(self):
        return ()

    def must_pause(self):
        return False

    def idle(self):
        return False


@pytest.fixture
def channels():
    context = zmq.Context()
    ends = [open_socket(context, zmq.PAIR) for _ in range(2)]
    ends[0].bind("inproc://executor")
    ends[1].connect("inproc://executor")
    for end in ends:
        end.setsockopt(zmq.RCVTIMEO, int(DEADLINE_S * 1000))
    yield PairChannel(ends[0], to_executor), PairChannel(ends[1], from_executor)
    for end in ends:
        end.close()
    context.term()


def make_rows(samplings):
    return [
        Row(i + 1, PROMPT, sampling, block_table=[10 * i + block for block in (3, 1, 4, 0, 2, 6, 5)])
        for i, sampling in enumerate(samplings)
    ]


def steps_of(rows):
    """The prompts in one step, then decodes."""
    first = [ScheduledRow(row.row_id, 0, len(PROMPT)) for row in rows]
    new_rows = [RunnerDriver.new_row(row, PROMPT) for row in rows]
    yield ExecuteStep(executor_epoch=1, step_id=1, new_rows=new_rows, rows=first)
    for i in range(1, NUM_TOKENS):
        decodes = [ScheduledRow(row.row_id, len(PROMPT) + i - 1, 1) for row in rows]
        yield ExecuteStep(executor_epoch=1, step_id=i + 1, rows=decodes)


def run(core, rows):
    """Play the core: two steps in flight, results taken as they come."""
    num_sent = num_received = 0
    for step in steps_of(rows):
        if num_sent - num_received == 2:
            num_received += 1
            take(core.recv(), rows, num_received)
        core.send(step)
        num_sent += 1
    while num_received < num_sent:
        num_received += 1
        take(core.recv(), rows, num_received)


def take(result, rows, step_id):
    assert result.step_id == step_id
    for row, of_row in zip(rows, result.rows, strict=True):
        row.results.append(of_row)


def test_answers_are_those_of_each_row_alone(channels):
    executor_end, core = channels
    runner = AheadRunner(tiny_checkpoint())
    rows = make_rows(SAMPLINGS)
    with ThreadPoolExecutor(2) as threads:
        device = threads.submit(runner.device.work_until_closed)
        pipeline = threads.submit(StepPipeline(CoreInbox(executor_end, 1), Worker(runner)).run)
        try:
            run(core, rows)
        finally:
            core.send(Shutdown())
            pipeline.exception(DEADLINE_S)
            runner.device.close()
            assert [thread.exception(DEADLINE_S) for thread in (pipeline, device)] == [None, None]
    for row, sampling in zip(rows, SAMPLINGS, strict=True):
        (alone,) = make_rows([sampling])
        RunnerDriver(make_runner(tiny_checkpoint())).run([alone], num_tokens=NUM_TOKENS)
        assert row.report == alone.report
