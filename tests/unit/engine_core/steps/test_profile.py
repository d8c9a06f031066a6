from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

from pagewire.engine_core.steps.profile import trace_core
from pagewire.ipc.step_trace import MAIN_TRACK, StepTrace, begin_trace_file, end_trace_file
from pagewire.ipc.steps import ExecuteStep
from tests.support.builders import build_driver, build_request
from tests.support.engine_driver import ALICE, EngineDriver


class Silent:
    """Sockets and children of the core: what a loop calls besides its engine."""

    def send(self, *_: Any) -> None:
        pass

    def poll(self, *_: Any) -> list[Any]:
        return []


def traced(path: Path, num_steps: int = 100) -> tuple[EngineDriver, Silent, StepTrace]:
    begin_trace_file(str(path))
    ticks = count(step=1000)
    trace = StepTrace(str(path), "core", num_steps=num_steps, clock=lambda: next(ticks))
    driver, outside = build_driver(), Silent()
    trace_core(trace, driver.engine, outside, Silent(), outside, max_steps_in_flight=2)  # type: ignore[arg-type]
    return driver, outside, trace


def run_step(driver: EngineDriver, outside: Silent) -> ExecuteStep:
    outside.poll()
    step = driver.send()
    assert step is not None
    outside.send(step)
    driver.receive()
    return step


def spans(path: Path) -> list[dict[str, Any]]:
    end_trace_file(str(path))
    return [event for event in json.loads(path.read_text()) if event["ph"] == "X"]


def test_a_step_is_followed_from_its_dispatch_until_it_is_applied(tmp_path: Path):
    path = tmp_path / "trace.json"
    driver, outside, trace = traced(path)
    driver.add(build_request(1, range(5), max_tokens=2), client=ALICE)
    first, second = run_step(driver, outside), run_step(driver, outside)
    trace.close()
    found = spans(path)
    assert {"wait", "add request", "schedule", "apply", "take outputs"} <= {span["name"] for span in found}
    flights = [span for span in found if span["tid"] != MAIN_TRACK]
    assert [span["name"] for span in flights] == [f"step {first.step_id}", f"step {second.step_id}"]
    assert flights[0]["args"] == {"step_id": first.step_id, "rows": 1, "new_rows": 1, "tokens": 5}
    assert {span["tid"] for span in flights} == {2, 3}
    applies = [span for span in found if span["name"] == "apply"]
    assert flights[0]["ts"] + flights[0]["dur"] == applies[0]["ts"] + applies[0]["dur"]


def test_the_trace_ends_with_the_last_of_its_steps(tmp_path: Path):
    path = tmp_path / "trace.json"
    driver, outside, _ = traced(path, num_steps=1)
    driver.add(build_request(1, range(5), max_tokens=3))
    run_step(driver, outside)
    run_step(driver, outside)
    assert len([span for span in spans(path) if span["tid"] != MAIN_TRACK]) == 1
    assert "schedule" not in vars(driver.engine)
