"""Of all that ranks say and show at the end of a group, one thing is the cause."""

from __future__ import annotations

import pytest

from pagewire.engine_core.executors.client import ProcessDeath
from pagewire.engine_core.executors.death import find_cause
from pagewire.ipc.errors import ExecutorDied, MachineError, PagewireError, RankLost

BUG = ExecutorDied("a bug")
LOST = RankLost("a peer is gone")


def death(rank: int, exit_code: int) -> ProcessDeath:
    return ProcessDeath(rank, f"executor {rank} ended ({exit_code})", exit_code)


def test_nothing_is_the_cause_of_nothing():
    assert find_cause([], {}, world_size=2) is None


@pytest.mark.parametrize(
    ("deaths", "failures", "text", "came_from_outside", "is_certain"),
    [
        ([death(1, -9)], {}, "executor 1 ended (-9)", True, True),
        ([death(1, -9)], {0: LOST}, "executor 1 ended (-9)", True, True),
        ([death(0, -6), death(1, -9)], {}, "executor 1 ended (-9)", True, True),
        ([death(0, -6)], {1: BUG}, "executor 1 failed: a bug", False, True),
        ([death(1, 1)], {1: BUG}, "executor 1 failed: a bug", False, True),
        ([], {0: LOST, 1: BUG}, "executor 1 failed: a bug", False, True),
        ([death(1, 3)], {}, "executor 1 ended (3)", False, False),
        ([death(1, 3), death(0, 1)], {0: LOST}, "executor 1 ended (3)", False, False),
        ([death(1, -11)], {0: LOST}, "executor 1 ended (-11)", True, False),
        ([], {0: LOST}, "executor 0 failed: a peer is gone", True, False),
    ],
)
def test_cause(
    deaths: list[ProcessDeath],
    failures: dict[int, PagewireError],
    text: str,
    came_from_outside: bool,
    is_certain: bool,
):
    cause = find_cause(deaths, failures, world_size=2)
    assert cause is not None
    assert (cause.text, cause.came_from_outside, cause.is_certain) == (text, came_from_outside, is_certain)


def test_what_a_rank_said_goes_with_the_cause():
    error = MachineError("No memory.")
    cause = find_cause([death(0, 1)], {0: error}, world_size=1)
    assert cause is not None
    assert (cause.text, cause.error) == ("the executor failed: No memory.", error)


def test_lone_executor_that_crashed_has_no_last_words():
    cause = find_cause([death(0, -11)], {}, world_size=1)
    assert cause is not None
    assert (cause.came_from_outside, cause.is_certain) == (True, True)
