"""Calls about rest, answered when they have taken effect."""

from __future__ import annotations

from typing import Any, cast

from pagewire.engine_core.executors.supervisor import ExecutorSupervisor
from pagewire.engine_core.rest.calls import RestCalls
from pagewire.ipc.outputs import UtilityResult
from pagewire.ipc.requests import CallUtility
from tests.support.builders import build_driver, build_request
from tests.support.engine_driver import ALICE, EngineDriver


class Scene:
    """An engine with a request in flight, and what was answered."""

    def __init__(self) -> None:
        self.driver: EngineDriver = build_driver(block_size=4)
        self.driver.add(build_request(1, range(9), max_tokens=3))
        self.driver.send()
        self.answers: list[UtilityResult] = []
        nobody = cast("ExecutorSupervisor", None)  # a pause leaves executors alone
        self._calls = RestCalls(nobody, lambda _client, result: self.answers.append(result), lambda: None)

    def call(self, method: str, *args: Any) -> None:
        call = CallUtility(call_id=len(self.answers), method=method, args=list(args))
        self._calls.call(self.driver.engine, ALICE, call, now=0.0)

    def look_after(self) -> None:
        self._calls.look_after(self.driver.engine, now=0.0)

    @property
    def num_cached_blocks(self) -> int:
        return len(self.driver.engine.prefix_cache)


def test_pause_is_answered_once_nothing_runs_and_has_the_cache_forgotten_then():
    scene = Scene()
    scene.call("pause", "wait", True)
    assert scene.answers == []
    scene.driver.settle()
    assert scene.num_cached_blocks > 0
    scene.look_after()
    assert [answer.result for answer in scene.answers] == [True]
    assert scene.num_cached_blocks == 0


def test_pause_that_is_over_before_it_began_forgets_nothing():
    scene = Scene()
    scene.call("pause", "keep", True)
    scene.call("resume")
    scene.driver.run()
    scene.look_after()
    assert [answer.result for answer in scene.answers] == [True, None]
    assert scene.answers[1].error is not None
    assert "overtaken" in scene.answers[1].error.message
    assert scene.num_cached_blocks > 0
