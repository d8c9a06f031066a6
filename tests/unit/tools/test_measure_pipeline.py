"""A stage computes in its steps, less what it waits in them for the stage before."""

from __future__ import annotations

import pytest

from tools.measure_pipeline import Event, idle_shares, read_stages


def process(pid: int, name: str) -> Event:
    return {"name": "process_name", "ph": "M", "pid": pid, "tid": 1, "args": {"name": name}}


def span(pid: int, name: str, begin_s: float, seconds: float) -> Event:
    return {"name": name, "ph": "X", "pid": pid, "tid": 1, "ts": begin_s * 1e6, "dur": seconds * 1e6}


def timeline() -> list[Event]:
    """Two steps of a second a stage; the second stage has the first step to wait for, and is alone in the end."""
    return [
        process(7, "core"),
        process(9, "executor 1"),
        process(8, "executor 0"),
        span(7, "step 1", 0.0, 5.0),
        span(8, "wait for the core", 5.0, 5.0),  # before anything was asked for
        span(8, "step", 10.0, 1.0),
        span(8, "step", 11.0, 1.0),
        span(9, "step", 10.0, 2.0),
        span(9, "wait for the stage before", 10.0, 1.0),
        span(9, "wait for the core", 12.0, 0.25),
        span(9, "step", 12.25, 1.75),
        span(9, "wait for the stage before", 12.25, 0.75),
    ]


def test_stages_are_read_by_rank_and_know_what_they_waited_for():
    first, second = read_stages(timeline())
    assert (first.name, second.name) == ("executor 0", "executor 1")
    assert (first.num_steps, first.busy_s, first.for_stage_s, first.for_core_s) == (2, 2.0, 0.0, 0.0)
    assert second.num_steps == 2
    assert (second.busy_s, second.for_stage_s, second.for_core_s) == pytest.approx((2.0, 1.75, 0.25))


def test_idle_is_whatever_is_left_of_the_time_from_the_first_step_to_the_last():
    assert idle_shares(read_stages(timeline())) == pytest.approx([0.5, 0.5])


def test_timeline_without_whole_steps_is_refused():
    with pytest.raises(ValueError, match="no steps"):
        read_stages([process(8, "executor 0"), span(8, "finish", 1.0, 1.0)])
