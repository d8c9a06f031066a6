"""What a worker does besides answering where steps are launched ahead: launch them, and capture graphs in between."""

from __future__ import annotations

import pytest

from pagewire.gpu_executor import worker as worker_module
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.gpu_executor.loading import LoadedExecutor
from pagewire.gpu_executor.worker import Worker
from pagewire.ipc.config import EngineConfig, SchedulerConfig
from pagewire.ipc.requests import CallUtility
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, ExecutorBusy, ExecutorReady, LoadModel, ScheduledRow
from tests.support.launching_ahead import AheadDriver, AheadRunner
from tests.support.runner import Row, RunnerDriver
from tests.support.tiny_model import tiny_checkpoint

EPOCH = 1


class Graphs:
    """Captures that are only counted; decodes are run by the model all the same."""

    def __init__(self, *, open_sizes=(), is_due=False):
        self.open_sizes = list(open_sizes)
        self.due = is_due
        self.captured = []
        self.asked_for = []

    def run(self, inputs):
        self.asked_for.append(inputs.input_ids.shape[0])

    def next_capture(self):
        return f"capturing {self.open_sizes[-1]}" if self.open_sizes else None

    def is_due(self):
        return self.due

    def capture(self):
        self.due = False
        self.captured.append(self.open_sizes.pop())


class FailingGraphs(Graphs):
    def capture(self):
        raise MemoryError


class WatchedOps:
    """Hands out who wants to know of compilations."""

    watch = None

    def watch_compilations(self, watch):
        self.watch = watch


class Channel:
    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)


@pytest.fixture
def channel():
    return Channel()


@pytest.fixture
def watched_ops():
    return WatchedOps()


@pytest.fixture
def make_worker(monkeypatch, channel, watched_ops):
    def make(graphs=None, **scheduler):
        ahead = AheadRunner(tiny_checkpoint(), graphs=graphs)
        ready = ExecutorReady(executor_epoch=EPOCH, num_blocks=64, device="fake", dtype="", kv_cache_dtype="")
        loaded = LoadedExecutor(runner=ahead.runner, ops=watched_ops, ready=ready)
        monkeypatch.setattr(worker_module, "load_executor", lambda *_: loaded)
        worker = Worker(HostLimits(), channel)
        config = EngineConfig(scheduler=SchedulerConfig(**scheduler))
        assert worker.handle(LoadModel(executor_epoch=EPOCH, config=config)) is ready
        return worker, ahead

    return make


def test_worker_that_has_loaded_nothing_launches_nothing():
    worker = Worker(HostLimits())
    assert not worker.launches_ahead
    assert worker.launch(ExecuteStep(executor_epoch=EPOCH, step_id=1)) is None
    assert not worker.must_pause()
    assert not worker.idle()


@pytest.mark.parametrize(("is_ahead", "expected"), [(True, 2), (False, 1)])
def test_steps_in_flight_are_as_many_as_the_core_sends(make_worker, is_ahead, expected):
    worker, _ = make_worker(async_scheduling=is_ahead)
    assert worker.launches_ahead
    assert worker.max_steps_in_flight == expected


def test_launched_step_holds_rows_and_one_of_another_epoch_is_dropped(make_worker):
    worker, ahead = make_worker()
    row = Row(1, [5, 6], Sampling(temperature=0.0), block_table=[3])
    step = ExecuteStep(
        executor_epoch=EPOCH, step_id=1, new_rows=[RunnerDriver.new_row(row, row.prompt)], rows=[ScheduledRow(1, 0, 2)]
    )
    assert worker.launch(ExecuteStep(executor_epoch=EPOCH + 1, step_id=1)) is None
    with ahead.device.launching():
        launched = worker.launch(step)
    assert len(launched.finish().rows[0].token_ids) == 1
    assert worker.handle(CallUtility(call_id=1, method="batch_rows")).result == [[1, 3, [3]]]


def test_without_graphs_there_is_nothing_to_do_while_idle(make_worker, channel):
    worker, _ = make_worker()
    assert not worker.idle()
    assert channel.sent == []


def test_each_capture_is_announced_before_it_is_made(make_worker, channel):
    graphs = Graphs(open_sizes=[1, 8])
    worker, _ = make_worker(graphs)
    assert [worker.idle() for _ in range(3)] == [True, True, False]
    assert graphs.captured == [8, 1]
    begins, ends = channel.sent[::2], channel.sent[1::2]
    assert all(isinstance(message, ExecutorBusy) and message.limit_s > 60 for message in begins)
    assert [(message.executor_epoch, message.reason) for message in begins] == [
        (EPOCH, "capturing 8"),
        (EPOCH, "capturing 1"),
    ]
    assert [message.limit_s for message in ends] == [0.0, 0.0]


def test_capture_that_fails_is_over_as_well(make_worker, channel):
    worker, _ = make_worker(FailingGraphs(open_sizes=[8]))
    with pytest.raises(MemoryError):
        worker.idle()
    assert channel.sent[-1] == ExecutorBusy(executor_epoch=EPOCH, reason="no longer capturing 8", limit_s=0.0)


def test_kernel_that_is_compiled_while_serving_is_announced(make_worker, channel, watched_ops):
    make_worker()
    watched_ops.watch.begin("rotary_kernel")
    watched_ops.watch.end("rotary_kernel")
    begin, end = channel.sent
    assert begin.reason == "compiling rotary_kernel"
    assert begin.limit_s > 60
    assert end.limit_s == 0.0


def test_steps_are_held_up_only_for_a_capture_that_is_due(make_worker):
    graphs = Graphs(open_sizes=[8], is_due=True)
    worker, _ = make_worker(graphs)
    assert worker.must_pause()
    worker.idle()
    assert not worker.must_pause()


def test_graphs_are_asked_for_decodes_alone():
    graphs = Graphs()
    driver = AheadDriver(AheadRunner(tiny_checkpoint(), graphs=graphs))
    rows = [Row(1, [5, 6], Sampling(temperature=0.0), [3]), Row(2, [7, 8, 9], Sampling(temperature=0.0), [4])]
    driver.launch([(rows[0], 2)])
    driver.launch([(rows[0], 1), (rows[1], 2)])
    driver.launch([(rows[0], 1), (rows[1], 1)])
    while driver.in_flight:
        driver.finish()
    assert graphs.asked_for == [2]
