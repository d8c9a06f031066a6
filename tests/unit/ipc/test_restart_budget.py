"""Deaths in a row without progress end in giving up; deaths with progress between never add up."""

from __future__ import annotations

from pagewire.ipc.restart_budget import RestartBudget


def test_as_many_restarts_as_allowed_are_tried():
    budget = RestartBudget("the executor", 2)
    for _ in range(2):
        budget.count_death(is_failed_start=False)
        assert budget.exhausted_by() is None
    budget.count_death(is_failed_start=False)
    assert "3 times in a row" in budget.exhausted_by()
    assert "--max-restarts 2" in budget.exhausted_by()


def test_zero_allows_no_restart():
    budget = RestartBudget("the executor", 0)
    budget.count_death(is_failed_start=False)
    assert "1 time in a row" in budget.exhausted_by()


def test_finished_step_between_deaths_begins_the_count_anew():
    budget = RestartBudget("the executor", 1)
    for _ in range(10):
        budget.count_death(is_failed_start=False)
        assert budget.exhausted_by() is None
        budget.step_finished()


def test_two_failed_starts_in_a_row_end_it_whatever_is_left():
    budget = RestartBudget("the executor", 100)
    budget.count_death(is_failed_start=True)
    assert budget.exhausted_by() is None
    budget.count_death(is_failed_start=True)
    assert "2 starts of the executor in a row" in budget.exhausted_by()


def test_start_that_succeeds_or_is_cut_off_from_outside_is_no_failed_one():
    budget = RestartBudget("the executor", 100)
    for _ in range(3):
        budget.count_death(is_failed_start=True)
        budget.start_succeeded()
        budget.count_death(is_failed_start=True)
        budget.count_death(is_failed_start=False)
        assert budget.exhausted_by() is None


def test_death_strains_the_budget_until_there_is_progress():
    budget = RestartBudget("the executor", 5)
    assert not budget.is_strained
    budget.count_death(is_failed_start=False)
    assert budget.is_strained
    budget.step_finished()
    assert not budget.is_strained
