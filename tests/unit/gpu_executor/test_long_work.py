"""The core knows of long work for as long as it goes on, and not a moment longer."""

from __future__ import annotations

import logging

import pytest

from pagewire.gpu_executor.long_work import AnnouncedCompilations, LongWork
from pagewire.ipc.steps import ExecutorBusy

EPOCH = 3


class Told(list[ExecutorBusy]):
    """What the core was told, and a clock that the test moves."""

    now = 0.0

    def work(self) -> LongWork:
        return LongWork(self.append, EPOCH, clock=lambda: self.now)

    @property
    def limits(self) -> list[float]:
        return [message.limit_s for message in self]


def test_the_end_of_work_is_told_as_well_as_its_beginning() -> None:
    told = Told()
    with told.work().during("capturing", 120.0):
        assert told == [ExecutorBusy(executor_epoch=EPOCH, reason="capturing", limit_s=120.0)]
    assert told[1:] == [ExecutorBusy(executor_epoch=EPOCH, reason="no longer capturing", limit_s=0.0)]


def test_work_within_work_leaves_the_outer_announced() -> None:
    told = Told()
    work = told.work()
    with work.during("capturing", 120.0):
        work.begin("compiling", 60.0)
        told.now = 5.0
        assert work.end() == 5.0
        assert told[-1].reason == "capturing"
    assert told.limits == [120.0, 60.0, 120.0, 0.0]


def test_failed_work_ends_and_takes_what_lay_within_with_it() -> None:
    told = Told()
    work = told.work()

    def capture() -> None:
        with work.during("capturing", 120.0):
            work.begin("compiling", 60.0)
            raise ValueError("out of registers")

    with pytest.raises(ValueError, match="register"):
        capture()
    assert told.limits == [120.0, 60.0, 0.0]
    with work.during("capturing", 120.0):
        pass
    assert told.limits[3:] == [120.0, 0.0]


@pytest.mark.parametrize(("seconds", "num_lines"), [(1.25, 1), (0.01, 0)])
def test_a_compilation_is_announced_and_named_if_it_took_a_while(
    seconds: float, num_lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    told = Told()
    compilations = AnnouncedCompilations(told.work(), 60.0)
    compilations.begin("rotary_kernel")
    told.now = seconds
    compilations.end("rotary_kernel")
    assert [message.reason for message in told] == ["compiling rotary_kernel", "no longer compiling rotary_kernel"]
    assert told.limits == [60.0, 0.0]
    assert [record.getMessage() for record in caplog.records] == [
        "compiled rotary_kernel while serving, in 1.2 s; requests waited for it"
    ] * num_lines
