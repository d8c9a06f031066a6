"""Counts of steps add up, and only the last step's own figures are replaced."""

from __future__ import annotations

from pagewire.engine_core.drafts.speculation import DraftCounts
from pagewire.engine_core.engine import Engine
from pagewire.engine_core.request import Request
from pagewire.engine_core.steps.totals import StepTotals
from pagewire.ipc.outputs import StepStats
from pagewire.ipc.steps import StepResult
from tests.support.builders import build_driver, build_request
from tests.support.engine_driver import ALICE


def stats_of(totals: StepTotals, engine: Engine | None = None) -> StepStats:
    engine = engine or build_driver().engine
    return totals.stats(
        engine._scheduler,
        engine._cache,
        engine._processor,
        DraftCounts(),
        num_executor_restarts=0,
        is_serving=True,
        rest=engine.rest,
    )


def test_times_add_up_and_the_last_step_shows_its_own():
    totals = StepTotals()
    totals.finish(StepResult(executor_epoch=1, step_id=1, step_s=3.0, device_s=2.0, host_gap_s=1.0), 70)
    totals.finish(StepResult(executor_epoch=1, step_id=2, step_s=0.75, device_s=0.5, host_gap_s=0.25), 4)
    stats = stats_of(totals)
    assert (stats.num_steps, stats.num_scheduled_tokens, stats.step_s) == (2, 4, 0.75)
    assert (stats.device_s, stats.host_gap_s) == (2.5, 1.25)


def test_rows_of_steps_that_left_requests_waiting_add_up():
    totals = StepTotals()
    totals.leave_waiting(3, 8)
    totals.leave_waiting(8, 8)
    stats = stats_of(totals)
    assert (stats.num_busy_rows, stats.num_available_rows) == (11, 16)


def test_adapters_of_requests_that_run_and_wait_are_told_once_each():
    engine = build_driver().engine
    requests = [
        Request(
            ALICE, build_request(n, [1]), arrival=n, now=0.0, max_model_len=9, has_priority=False, adapter_id=load_id
        )
        for n, load_id in enumerate((5, 2, 0, 5, 3, 3))
    ]
    children = [request.children[0] for request in requests]
    engine._scheduler.running.update(dict.fromkeys(children[:4]))
    for child in children[4:]:
        engine._scheduler.waiting.push(child)
    stats = stats_of(StepTotals(), engine)
    assert (stats.running_adapters, stats.waiting_adapters) == ((2, 5), (3,))
