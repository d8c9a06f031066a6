"""What `--profile-steps` shows of the core: schedule, dispatch, wait, apply, send; and the steps that are in flight."""

from __future__ import annotations

import zmq

from pagewire.ipc.config import EngineConfig
from pagewire.ipc.step_trace import MAIN_TRACK, StepTrace
from pagewire.ipc.steps import ExecuteStep, StepResult

from ..clients.registry import ClientRegistry
from ..engine import Engine
from ..executors.supervisor import ExecutorSupervisor


def trace_if_asked(
    config: EngineConfig, engine: Engine, executors: ExecutorSupervisor, clients: ClientRegistry, poller: zmq.Poller
) -> StepTrace | None:
    """Return the trace that `--profile-steps` asks for; arguments as of `trace_core`."""
    path = config.observability.profile_steps
    if path is None:
        return None
    trace = StepTrace(path, "core")
    trace_core(trace, engine, executors, clients, poller, max_steps_in_flight=config.max_steps_in_flight)
    return trace


def trace_core(
    trace: StepTrace,
    engine: Engine,
    executors: ExecutorSupervisor,
    clients: ClientRegistry,
    poller: zmq.Poller,
    *,
    max_steps_in_flight: int,
) -> None:
    """Time the parts of the core's loop, and each step from its dispatch until its result is applied.

    Args:
        trace: of this process; counts the steps that came back.
        engine: schedules and applies.
        executors: take the steps.
        clients: are told.
        poller: what the loop waits in.
        max_steps_in_flight: steps that overlap: neighbours lie on lines of their own.
    """
    for number in range(1, max_steps_in_flight + 1):
        trace.name_track(MAIN_TRACK + number, f"steps in flight {number}")
    dispatched: dict[int, tuple[int, ExecuteStep]] = {}

    def sent(_start_ns: int, end_ns: int, _: None, step: ExecuteStep, *__: object) -> None:
        dispatched[step.step_id] = (end_ns, step)

    def applied(_start_ns: int, end_ns: int, _: None, result: StepResult, *__: object) -> None:
        if result.step_id not in dispatched:
            return  # of an executor that is gone
        sent_ns, step = dispatched.pop(result.step_id)
        track = MAIN_TRACK + 1 + step.step_id % max_steps_in_flight
        trace.add(f"step {step.step_id}", sent_ns, end_ns, track=track, details=_size(step))
        trace.step_done()

    trace.wrap(poller, "poll", "wait")
    trace.wrap(engine, "add_request", "add request")
    trace.wrap(engine, "schedule", "schedule", describe=lambda step, *_: {} if step is None else _size(step))
    trace.wrap(executors, "send", "dispatch", then=sent)
    trace.wrap(engine, "apply", "apply", then=applied)
    trace.wrap(engine, "take_masks", "make masks")
    trace.wrap(engine, "take_outputs", "take outputs")
    trace.wrap(clients, "send", "send")


def _size(step: ExecuteStep) -> dict[str, object]:
    return {
        "step_id": step.step_id,
        "rows": len(step.rows),
        "new_rows": len(step.new_rows),
        "tokens": sum(row.num_scheduled_tokens for row in step.rows),
    }
