"""Messages and the ends of steps are taken as they come, and answered in order."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import zmq

from pagewire.gpu_executor.core_inbox import CoreInbox, Stopped
from pagewire.gpu_executor.step_in_flight import StepInFlight
from pagewire.gpu_executor.step_pipeline import StepPipeline
from pagewire.ipc.channels import PairChannel, open_socket
from pagewire.ipc.codec import from_executor, to_executor
from pagewire.ipc.outputs import UtilityResult
from pagewire.ipc.requests import CallUtility
from pagewire.ipc.steps import AdapterLoaded, ExecuteStep, RowMasks, SamplingMasks, Shutdown, StepResult

DEADLINE_S = 30.0


class ManualStep(StepInFlight):
    """A step that is done when the test says so."""

    def __init__(self, worker, step_id):
        self._worker = worker
        self._step_id = step_id
        self._is_done = threading.Event()
        self.failure = None

    def end(self, failure=None):
        self.failure = failure
        self._is_done.set()

    def is_done(self):
        return self._is_done.is_set()

    def wait(self):
        assert self._is_done.wait(DEADLINE_S)
        if self.failure is not None:
            raise self.failure

    def finish(self):
        self.wait()
        self._worker.num_in_flight -= 1
        return StepResult(executor_epoch=1, step_id=self._step_id)


class ManualWorker:
    """Launches such steps, and notes what it is asked for, in order."""

    def __init__(self):
        self.max_steps_in_flight = 2
        self.is_output_rank = True
        self.num_in_flight = 0
        self.steps = {}
        self.calls = []
        self.wants_pause = False
        self.idle_work = []
        self.background_fd, self._write_fd = os.pipe()
        self.background_answers = []
        self._changed = threading.Condition()

    def launch(self, step):
        if step.step_id in self.steps:
            raise ValueError(f"step {step.step_id} can't be launched")
        if step.executor_epoch != 1:
            self._note("dropped")
            return None
        self.num_in_flight += 1
        assert self.num_in_flight <= self.max_steps_in_flight
        launched = self.steps[step.step_id] = ManualStep(self, step.step_id)
        self._note(f"launch {step.step_id}")
        return launched

    def handle(self, message):
        assert self.num_in_flight == 0
        return UtilityResult(call_id=message.call_id)

    def answer_in_background(self, answer):
        self.background_answers.append(answer)
        os.write(self._write_fd, b"\0")

    def take_background_answers(self):
        answers, self.background_answers = self.background_answers, []
        if answers:
            os.read(self.background_fd, 4096)
        return answers

    def must_pause(self):
        return self.wants_pause

    def idle(self):
        assert self.num_in_flight == 0
        self.wants_pause = False
        self._note("idle")
        return bool(self.idle_work and self.idle_work.pop())

    def wait_for(self, *calls):
        """Block until exactly these calls were made; idle ones count only where some are expected."""

        def made():
            return [call for call in self.calls if call != "idle" or "idle" in calls]

        with self._changed:
            assert self._changed.wait_for(lambda: len(made()) >= len(calls), DEADLINE_S), self.calls
            assert made() == list(calls)

    def _note(self, call):
        with self._changed:
            self.calls.append(call)
            self._changed.notify_all()


class Core:
    """The other end of the conversation, and the pipeline in a thread of its own."""

    def __init__(self):
        self.context = zmq.Context()
        ends = [open_socket(self.context, zmq.PAIR) for _ in range(2)]
        ends[0].bind("inproc://executor")
        ends[1].connect("inproc://executor")
        for end in ends:
            end.setsockopt(zmq.RCVTIMEO, int(DEADLINE_S * 1000))
        self.worker = ManualWorker()
        self.channel = PairChannel(ends[1], from_executor)
        self._ends = ends
        self._threads = ThreadPoolExecutor(1)
        self.run = None

    def start(self):
        self.pipeline = StepPipeline(CoreInbox(PairChannel(self._ends[0], to_executor), 1), self.worker)
        self.run = self._threads.submit(self.pipeline.run)

    def send_steps(self, *step_ids, epoch=1):
        for step_id in step_ids:
            self.channel.send(ExecuteStep(executor_epoch=epoch, step_id=step_id))

    def received(self, count):
        return [self.channel.recv() for _ in range(count)]

    def stop(self):
        self.channel.send(Shutdown())
        for step in self.worker.steps.values():
            step.end()
        self.run.result(DEADLINE_S)

    def close(self):
        for step in self.worker.steps.values():
            step.end()  # a thread may wait for one that the pipeline has left
        self._threads.shutdown()
        for end in self._ends:
            end.close()
        self.context.term()
        os.close(self.worker.background_fd)
        os.close(self.worker._write_fd)


@pytest.fixture
def core():
    core = Core()
    yield core
    core.close()


@pytest.fixture
def busy(core):
    """The pipeline never idles: it has its first message before it starts."""
    core.send_steps(1)
    core.start()
    core.worker.wait_for("launch 1")
    return core


def step_ids(messages):
    return [message.step_id for message in messages]


def test_next_step_is_launched_while_the_device_is_at_the_last_one(busy):
    busy.send_steps(2)
    busy.worker.wait_for("launch 1", "launch 2")
    busy.worker.steps[1].end()
    assert step_ids(busy.received(1)) == [1]
    busy.stop()


def test_end_of_a_step_is_told_without_a_further_message(busy):
    for step_id in (1, 2, 3):
        busy.worker.steps[step_id].end()
        assert step_ids(busy.received(1)) == [step_id]
        busy.send_steps(step_id + 1)
        busy.worker.wait_for(*[f"launch {launched}" for launched in range(1, step_id + 2)])
    busy.stop()


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_what_was_done_beside_the_steps_is_answered_amid_them(busy, num_steps):
    for step_id in range(2, num_steps + 1):
        busy.send_steps(step_id)
    busy.worker.wait_for(*[f"launch {step_id}" for step_id in range(1, max(num_steps, 1) + 1)])
    if num_steps != 1:
        busy.worker.steps[1].end()
        assert step_ids(busy.received(1)) == [1]
    answer = AdapterLoaded(executor_epoch=1, load_id=7)
    busy.worker.answer_in_background(answer)
    assert busy.received(1) == [answer]
    busy.stop()


def test_third_step_waits_for_the_end_of_the_first(busy):
    busy.send_steps(2, 3, 4)
    busy.worker.wait_for("launch 1", "launch 2")
    busy.worker.steps[1].end()
    busy.worker.wait_for("launch 1", "launch 2", "launch 3")
    busy.worker.steps[2].end()
    busy.worker.wait_for("launch 1", "launch 2", "launch 3", "launch 4")
    assert step_ids(busy.received(2)) == [1, 2]
    busy.stop()


def test_results_keep_the_order_of_the_steps(busy):
    busy.send_steps(2)
    busy.worker.wait_for("launch 1", "launch 2")
    busy.worker.steps[2].end()
    busy.worker.steps[1].end()
    assert step_ids(busy.received(2)) == [1, 2]
    busy.stop()


def test_results_of_a_rank_that_is_not_the_output_rank_are_not_told(busy):
    busy.worker.is_output_rank = False
    busy.send_steps(2)
    for step_id in (1, 2):
        busy.worker.wait_for(*[f"launch {launched}" for launched in (1, 2)])
        busy.worker.steps[step_id].end()
    busy.stop()
    assert not busy.channel.socket.poll(0)


def test_core_that_does_not_schedule_ahead_gets_one_step_at_a_time(core):
    core.worker.max_steps_in_flight = 1
    core.send_steps(1, 2)
    core.start()
    core.worker.wait_for("launch 1")
    core.worker.steps[1].end()
    core.worker.wait_for("launch 1", "launch 2")
    core.worker.steps[2].end()
    assert step_ids(core.received(2)) == [1, 2]
    core.stop()


def test_utility_call_sees_the_state_after_the_steps_before_it(busy):
    busy.channel.send(CallUtility(call_id=7, method="batch_rows"))
    busy.worker.steps[1].end()
    result, reply = busy.received(2)
    assert isinstance(result, StepResult)
    assert isinstance(reply, UtilityResult)
    busy.stop()


def test_step_of_another_epoch_is_dropped(busy):
    busy.send_steps(2, epoch=2)
    busy.worker.wait_for("launch 1", "dropped")
    busy.worker.steps[1].end()
    assert step_ids(busy.received(1)) == [1]
    busy.stop()


def test_shutdown_does_not_wait_for_a_step_in_flight(busy):
    busy.channel.send(Shutdown())
    busy.run.result(DEADLINE_S)
    assert not busy.worker.steps[1].is_done()


def test_idle_work_goes_on_until_none_is_left(core):
    core.worker.idle_work = [True, True]
    core.start()
    core.worker.wait_for("idle", "idle", "idle")
    core.send_steps(1)
    core.worker.wait_for("idle", "idle", "idle", "launch 1")
    core.stop()


def test_no_idle_work_is_begun_while_a_step_is_in_flight(busy):
    busy.worker.steps[1].end()
    busy.received(1)
    busy.worker.wait_for("launch 1", "idle")  # asserts itself that nothing is in flight
    busy.stop()


def test_urgent_work_holds_steps_up_until_nothing_is_in_flight(busy):
    busy.worker.wants_pause = True
    busy.send_steps(2)
    busy.worker.steps[1].end()
    busy.worker.wait_for("launch 1", "idle", "launch 2")
    busy.stop()


def test_failed_launch_ends_the_pipeline_after_the_steps_before_it(busy):
    busy.send_steps(1)  # its number is taken
    busy.worker.steps[1].end()
    with pytest.raises(ValueError, match="can't be launched"):
        busy.run.result(DEADLINE_S)
    assert step_ids(busy.received(1)) == [1]


def test_failing_device_ends_the_pipeline(busy):
    busy.worker.steps[1].end(RuntimeError("an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        busy.run.result(DEADLINE_S)


def test_step_that_waits_for_its_masks_has_those_before_it_finished_and_told(busy):
    launch, found = busy.worker.launch, []

    def launch_and_wait(step):
        launched = launch(step)
        if step.step_id == 2:
            found.append(busy.pipeline.wait_for_masks(2))
        return launched

    busy.worker.launch = launch_and_wait
    busy.send_steps(2)
    busy.worker.wait_for("launch 1", "launch 2")
    busy.worker.steps[1].end()
    assert step_ids(busy.received(1)) == [1]  # what the masks hang on
    busy.send_steps(3)
    busy.channel.send(SamplingMasks(executor_epoch=1, step_id=2, rows=[RowMasks(7, b"mask")]))
    busy.worker.wait_for("launch 1", "launch 2", "launch 3")
    assert found == [{7: b"mask"}]
    busy.stop()


def test_shutdown_reaches_a_step_that_waits_for_its_masks(busy):
    launch = busy.worker.launch
    busy.worker.launch = lambda step: (launch(step), busy.pipeline.wait_for_masks(step.step_id))[0]
    busy.send_steps(2)
    busy.worker.wait_for("launch 1", "launch 2")
    busy.worker.steps[1].end()
    busy.channel.send(Shutdown())
    with pytest.raises(Stopped):
        busy.run.result(DEADLINE_S)
