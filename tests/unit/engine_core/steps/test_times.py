from __future__ import annotations

import pytest

from pagewire.engine_core.steps.times import StepTimes
from pagewire.ipc.steps import StepResult


def result(step_s: float = 0.0) -> StepResult:
    return StepResult(executor_epoch=1, step_id=1, step_s=step_s)


def test_one_stage_knows_what_a_step_took():
    assert StepTimes(1).measure(result(0.02), sent_s=0.0, now=5.0) == 0.02


def test_lone_step_took_the_way_through_all_stages():
    assert StepTimes(2).measure(result(0.02), sent_s=10.0, now=10.05) == pytest.approx(0.05)


def test_equal_steps_take_as_long_as_each_of_them_was_on_its_way():
    times = StepTimes(2)
    measured = [times.measure(result(0.02), sent_s=0.02 * i, now=0.02 * i + 0.04) for i in range(4)]
    assert measured == pytest.approx([0.04] * 4)


def test_short_step_behind_a_long_one_is_not_taken_for_a_long_one():
    times = StepTimes(2)
    times.measure(result(0.1), sent_s=0.0, now=0.2)
    assert times.measure(result(0.002), sent_s=0.0, now=0.202) == pytest.approx(0.004)


def test_results_that_the_core_finds_together_took_what_their_last_stage_took_at_least():
    times = StepTimes(2)
    times.measure(result(0.02), sent_s=0.0, now=0.04)
    assert times.measure(result(0.02), sent_s=0.0, now=0.04) == 0.02
