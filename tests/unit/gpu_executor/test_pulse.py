"""The core hears that an executor runs for as long as its main thread can't answer, and not a moment longer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from pagewire.gpu_executor.pulse import Pulse, longest_silence_s
from pagewire.ipc.channels import PairChannel, bind_core, connect_executor
from pagewire.ipc.steps import ExecutorBusy, FromExecutor, ToExecutor

WAIT_MS = 10_000

Ends = tuple[PairChannel[ToExecutor], PairChannel[FromExecutor]]


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    """The executor's end and the core's."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    address = f"ipc://{tmp_path}/executor.sock"
    executor, core = bind_core(context, address), connect_executor(context, address)
    yield executor, core
    executor.close()
    core.close()
    context.term()


def receive(core: PairChannel[FromExecutor]) -> FromExecutor:
    assert core.socket.poll(WAIT_MS)
    return core.recv()


def test_each_pulse_says_what_is_done_and_how_long_a_silence_may_last(ends: Ends):
    executor, core = ends
    expected = ExecutorBusy(executor_epoch=3, reason="loading", limit_s=7.0)
    with Pulse(executor, epoch=3, reason="loading", limit_s=7.0, interval_s=0.01):
        assert [receive(core) for _ in range(3)] == [expected] * 3


def test_channel_is_the_main_threads_again_after_the_block(ends: Ends):
    executor, core = ends
    with Pulse(executor, epoch=1, reason="loading", limit_s=1.0):
        pass
    executor.send(ExecutorBusy(executor_epoch=1, reason="the main thread", limit_s=1.0))
    assert [receive(core).reason for _ in range(2)] == ["loading", "the main thread"]


def test_failure_within_the_block_ends_the_pulse(ends: Ends):
    executor, _ = ends
    pulse = Pulse(executor, epoch=1, reason="loading", limit_s=1.0)
    with pytest.raises(MemoryError), pulse:
        raise MemoryError
    assert not pulse._thread.is_alive()


def test_later_executor_may_be_silent_for_less_time_than_the_first():
    assert longest_silence_s(is_first=False) < longest_silence_s(is_first=True)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_driver_that_may_have_to_set_its_gpus_up_has_a_minute_at_every_start(tmp_path: Path, is_first: bool):
    there, missing = (tmp_path,), (tmp_path / "nvidiactl",)
    assert longest_silence_s(is_first=is_first, device="auto", drivers=there) == 60.0
    without = longest_silence_s(is_first=is_first)
    assert without <= 20.0
    assert longest_silence_s(is_first=is_first, device="cpu", drivers=there) == without
    assert longest_silence_s(is_first=is_first, device="auto", drivers=missing) == without
