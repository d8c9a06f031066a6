"""The file of a timeline: JSON whose spans line up, whatever process they come from and however it ends."""

from __future__ import annotations

import json
import logging
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pagewire.ipc.errors import ConfigError
from pagewire.ipc.step_trace import MAIN_TRACK, StepTrace, begin_trace_file, end_trace_file


class Adder:
    def add(self, a: int, b: int = 0) -> int:
        if a < 0:
            raise ValueError
        return a + b


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = str(tmp_path / "trace.json")
    begin_trace_file(file)
    return file


def make_trace(path: str, process: str = "core", num_steps: int = 5) -> StepTrace:
    """A trace whose clock goes on by a millisecond with each look."""
    ticks = count(step=1_000_000)
    return StepTrace(path, process, num_steps=num_steps, clock=lambda: next(ticks))


def spans(path: str) -> list[dict[str, Any]]:
    end_trace_file(path)
    return [event for event in json.loads(Path(path).read_text()) if event["ph"] == "X"]


def test_calls_of_a_wrapped_method_become_spans_with_their_details(path: str):
    trace, adder = make_trace(path), Adder()
    trace.wrap(adder, "add", "sum", describe=lambda result, a, *_: {"result": result, "a": a})
    assert adder.add(1, b=2) == 3
    trace.close()
    (span,) = spans(path)
    assert (span["name"], span["ts"], span["dur"], span["tid"]) == ("sum", 0, 1000, MAIN_TRACK)
    assert span["args"] == {"result": 3, "a": 1}


def test_other_objects_of_the_class_are_left_alone(path: str):
    trace, other = make_trace(path), Adder()
    trace.wrap(Adder(), "add", "sum")
    other.add(1)
    trace.close()
    assert spans(path) == []


def test_a_failing_call_fails_as_before_and_leaves_no_span(path: str):
    trace, adder = make_trace(path), Adder()
    trace.wrap(adder, "add", "sum")
    with pytest.raises(ValueError):
        adder.add(-1)
    trace.close()
    assert spans(path) == []


def test_a_listener_sees_the_call_with_its_times_and_may_be_all_there_is(path: str):
    trace, adder, seen = make_trace(path), Adder(), []
    trace.wrap(adder, "add", None, then=lambda *arguments: seen.append(arguments))
    adder.add(1, 2)
    trace.close()
    assert seen == [(0, 1_000_000, 3, 1, 2)]
    assert spans(path) == []


def test_after_the_last_step_the_file_is_written_and_nothing_is_timed_any_more(path: str):
    trace, adder = make_trace(path, num_steps=2), Adder()
    trace.wrap(adder, "add", "sum", then=lambda *_: trace.step_done())
    for _ in range(4):
        adder.add(1)
    assert "add" not in vars(adder)
    trace.close()
    assert len(spans(path)) == 2


def test_processes_append_to_one_file(path: str):
    for name in ("core", "executor"):
        trace = make_trace(path, name)
        trace.name_track(2, "steps in flight")
        trace.add("x", 5_000, 7_500, track=2)
        trace.close()
    assert [(span["ts"], span["dur"], span["tid"]) for span in spans(path)] == [(5, 2.5, 2)] * 2
    named = [event["args"]["name"] for event in json.loads(Path(path).read_text()) if event["ph"] == "M"]
    assert named == ["core", "steps in flight", "executor", "steps in flight", "supervisor"]


def test_a_file_that_can_not_be_made_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"--profile-steps .*x\.json can't be written: No such file"):
        begin_trace_file(str(tmp_path / "no" / "x.json"))


def test_a_file_that_can_not_be_written_later_costs_the_timeline_alone(tmp_path: Path, caplog):
    trace, adder = make_trace(str(tmp_path / "no" / "x.json")), Adder()
    trace.wrap(adder, "add", "sum")
    with caplog.at_level(logging.ERROR):
        trace.close()
    assert "can't be written" in caplog.text
    assert adder.add(1) == 1


def test_a_method_that_is_wrapped_twice_is_restored(path: str):
    trace, adder = make_trace(path), Adder()
    trace.wrap(adder, "add", "inner")
    trace.wrap(adder, "add", "outer")
    adder.add(1)
    trace.close()
    assert [span["name"] for span in spans(path)] == ["inner", "outer"]
    assert "add" not in vars(adder)
