"""A pipeline of stages on a virtual clock under a real engine: how busy each stage is, and when tokens come."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pagewire.engine_core.engine import Engine
from pagewire.ipc.requests import AddRequest
from pagewire.ipc.steps import ExecuteStep, StepResult
from tests.support.engine_driver import ALICE, EngineDriver

HOP_S = 0.0002  # from the core to the first stage, and from the last one back


@dataclass
class PipelineRun:
    """What was seen.

    Attributes:
        busy_s: of each stage.
        end_s: when the last result came.
        token_times: of each request, in the order of its tokens.
    """

    busy_s: list[float]
    end_s: float = 0.0
    token_times: dict[int, list[float]] = field(default_factory=dict)

    def idle_shares(self) -> list[float]:
        """Return each stage's part of the whole time in which it had nothing to compute."""
        return [1 - busy_s / self.end_s for busy_s in self.busy_s]

    def gaps_s(self, request_id: int) -> list[float]:
        """Return the times between a request's tokens."""
        times = self.token_times[request_id]
        return [after - before for before, after in itertools.pairwise(times)]


def run_pipeline(
    driver: EngineDriver,
    arrivals: Sequence[tuple[float, AddRequest]],
    stage_times: Sequence[Callable[[ExecuteStep], float]],
) -> PipelineRun:
    """Let requests come at their times, and each stage compute a step as soon as it has it and the one before is done.

    Args:
        driver: over an executor of as many stages; nothing has happened in it yet.
        arrivals: (seconds, request).
        stage_times: seconds that each stage takes of a step.
    """
    run = PipelineRun([0.0] * len(stage_times))
    engine: Engine = driver.engine
    free_s = [0.0] * len(stage_times)
    events: list[tuple[float, int, AddRequest | StepResult]] = []
    for number, (at_s, request) in enumerate(arrivals):
        heapq.heappush(events, (at_s, number, request))
    num_events = len(events)
    while events:
        now, _, event = heapq.heappop(events)
        driver.now = now
        if isinstance(event, AddRequest):
            driver.add(event)
        else:
            before = {key: _num_tokens(driver, key) for key in driver.transcripts}
            engine.apply(event, now)
            driver.collect()
            for (client, request_id), num_tokens in before.items():
                if _num_tokens(driver, (client, request_id)) > num_tokens:
                    run.token_times.setdefault(request_id, []).append(now)
            run.end_s = now
        while engine.can_schedule() and (step := engine.schedule(now)) is not None:
            driver.steps.append(step)
            result = driver.executor.execute(step)
            at_s = now + HOP_S
            for stage, time_of in enumerate(stage_times):
                seconds = time_of(step)
                at_s = free_s[stage] = max(at_s, free_s[stage]) + seconds
                run.busy_s[stage] += seconds
            num_events += 1
            heapq.heappush(events, (at_s + HOP_S, num_events, _with_time(result, stage_times[-1](step))))
        driver.collect()
        engine.check_invariants()
    driver.check_ended()
    return run


def _with_time(result: StepResult, step_s: float) -> StepResult:
    return StepResult(
        executor_epoch=result.executor_epoch, step_id=result.step_id, rows=result.rows, step_s=step_s, device_s=step_s
    )


def _num_tokens(driver: EngineDriver, key: tuple[object, int]) -> int:
    return sum(len(child.token_ids) for child in driver.transcripts[ALICE, key[1]].children)
