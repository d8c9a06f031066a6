"""Counters that never fall back, whatever restarts."""

from __future__ import annotations

from pagewire.frontend.http.engine_totals import EngineTotals
from pagewire.ipc.outputs import StepStats


def test_counters_go_on_after_a_core_restart():
    totals = EngineTotals()
    totals.update(StepStats(num_steps=7, num_generation_tokens=100, num_preemptions=2), core=("a", 1))
    totals.update(StepStats(num_steps=1, num_generation_tokens=5), core=("a", 2))
    assert totals.total("num_generation_tokens") == 105
    totals.update(StepStats(num_steps=2, num_generation_tokens=6), core=("a", 2))
    assert totals.total("num_generation_tokens") == 106
    assert totals.total("num_preemptions") == 2


def test_new_core_that_is_further_than_the_old_one_is_known_by_its_epoch():
    totals = EngineTotals()
    totals.update(StepStats(num_steps=1, num_generation_tokens=3), core=("a", 1))
    totals.update(StepStats(num_steps=1, num_generation_tokens=4), core=("a", 2))
    assert totals.total("num_generation_tokens") == 7


def test_attaching_to_an_engine_that_has_restarted_before_is_no_restart():
    totals = EngineTotals()
    totals.update(StepStats(num_steps=9, num_generation_tokens=3), core=("a", 4))
    assert totals.total("num_generation_tokens") == 3


def test_first_core_of_another_engine_is_another_core():
    totals = EngineTotals()
    totals.update(StepStats(num_steps=9, num_generation_tokens=3), core=("a", 1))
    totals.update(StepStats(num_steps=1, num_generation_tokens=2), core=("b", 1))
    assert totals.total("num_generation_tokens") == 5


def test_cores_side_by_side_add_up_and_one_that_restarts_goes_on_alone():
    totals = EngineTotals()
    totals.update(StepStats(num_steps=3, num_generation_tokens=30, num_running=2), ("a", 1), rank=0)
    totals.update(StepStats(num_steps=4, num_generation_tokens=40, num_running=1), ("b", 1), rank=1)
    assert (totals.total("num_generation_tokens"), totals.latest.num_running) == (70, 3)
    totals.update(StepStats(num_steps=1, num_generation_tokens=1), ("b", 2), rank=1)
    assert (totals.total("num_generation_tokens"), totals.latest.num_running) == (71, 2)


def test_what_others_know_of_cores_fills_in_and_is_counted_once():
    totals, other = EngineTotals(), EngineTotals()
    other.update(StepStats(num_steps=9, num_generation_tokens=90), ("a", 1))
    other.update(StepStats(num_steps=2, num_generation_tokens=2), ("a", 2))
    totals.update(StepStats(num_steps=3, num_generation_tokens=3, num_running=1), ("a", 2))
    for _ in range(2):
        totals.learn(other.cores)
    assert (totals.total("num_generation_tokens"), totals.latest.num_running) == (93, 1)
    other.update(StepStats(num_steps=1, num_generation_tokens=5, num_running=4), ("a", 3))
    totals.learn(other.cores)
    assert (totals.total("num_generation_tokens"), totals.latest.num_running) == (98, 4)
