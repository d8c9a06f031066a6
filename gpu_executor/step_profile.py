"""What `--profile-steps` shows of an executor: decode, plan, build inputs, forward by op, output layer, sample, reply.

Ops are summed up by kind: within a forward they stand one after the other, each as long as all its calls in all layers
took, and not where they happened. A span an op and layer would be hundreds a step and slow down what it shows.

Where a GPU computes, these are the times of the launches; how long it took itself stands at the span that finishes the
step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pagewire.ipc.channels import PairChannel
from pagewire.ipc.step_trace import StepTrace
from pagewire.ipc.steps import ExecuteStep, StepResult, ToExecutor

from .kernels.ops import Ops
from .model_runner import ModelRunner
from .step_in_flight import StepInFlight

# Those that call no other op.
_SMALL_OPS = (
    "embedding", "linear", "rms_norm", "add_rms_norm", "rotary", "store_kv", "paged_attention", "silu_and_mul",
    "gelu_tanh_and_mul", "copy_blocks", "bound_logits", "argmax", "draw", "logprobs",
)  # fmt: skip


class OpTime(NamedTuple):
    """How long an op took in all its calls, in nanoseconds, and how many calls there were."""

    nanoseconds: int
    num_calls: int


ReadOpTimes = Callable[[], Mapping[str, OpTime]]
"""Returns the time of each op since the last call."""


def trace_runner(trace: StepTrace, runner: ModelRunner, ops: Ops) -> None:
    """Time the parts of a runner's steps.

    Args:
        trace: of this process; counts the steps.
        runner: loaded and warm.
        ops: those of its model.
    """
    read_op_times = _native_times(trace, ops) or _TimedOps(trace, ops).read

    def show_ops(start_ns: int, *_: object) -> None:
        for name, time_of in read_op_times().items():
            end_ns = start_ns + time_of.nanoseconds
            trace.add(name, start_ns, end_ns, details={"calls": time_of.num_calls})
            start_ns = end_ns

    trace.wrap(runner.batch, "plan", "plan")
    trace.wrap(runner.batch, "build_inputs", "build inputs")
    trace.wrap(runner.model, "forward", "forward", then=show_ops)
    if runner.link is not None:
        trace.wrap(runner.link, "receive", "wait for the stage before")
        trace.wrap(runner.link, "send", "hand the stream on")
    trace.wrap(runner, "fetch_masks", "wait for masks")
    if runner.launches_ahead:
        _trace_launches(trace, runner)
    else:
        trace.wrap(runner, "execute", "step", describe=_describe_step, then=lambda *_: trace.step_done())
        trace.wrap(runner.model, "choose_tokens", "output layer", then=show_ops)
        trace.wrap(runner.sampler, "sample", "sample", then=show_ops)
    read_op_times()  # what came before is nobody's


def _trace_launches(trace: StepTrace, runner: ModelRunner) -> None:
    """Time the launch and the end of each step; what lies between is the device's time."""

    def launched(_start_ns: int, _end_ns: int, in_flight: StepInFlight, step: ExecuteStep) -> None:
        def describe(result: StepResult) -> dict[str, object]:
            device_ms = {"device_ms": 1000 * result.device_s, "host_gap_ms": 1000 * result.host_gap_s}
            return {**_describe_step(result, step), **device_ms}

        trace.wrap(in_flight, "finish", "finish", describe=describe, then=lambda *_: trace.step_done())

    trace.wrap(runner, "launch", "launch", then=launched)
    trace.wrap(runner.sampler, "begin", "launch draws")


def trace_channel(trace: StepTrace, channel: PairChannel[ToExecutor]) -> None:
    """Time the waiting for a message, its decoding, and the reply.

    Args:
        trace: of this process.
        channel: the conversation with the core.
    """
    for waiting in ("wait", "recv_frame"):
        trace.wrap(channel, waiting, "wait for the core")
    trace.wrap(channel, "decode", "decode message")
    trace.wrap(channel, "send", "reply")


class _TimedOps:
    """Times ops that have no clock of their own."""

    def __init__(self, trace: StepTrace, ops: Ops) -> None:
        self._times: dict[str, OpTime] = {}
        for name in _SMALL_OPS:
            trace.wrap(ops, name, None, then=self._clock_of(name))
        if ops.ranks.size > 1:
            trace.wrap(ops.ranks, "sum_in_order", None, then=self._clock_of("sum over ranks"))

    def read(self) -> Mapping[str, OpTime]:
        """Return the time of each op since the last call."""
        times, self._times = self._times, {}
        return times

    def _clock_of(self, name: str) -> Callable[..., None]:
        def count(start_ns: int, end_ns: int, *_: object) -> None:
            before = self._times.get(name, OpTime(0, 0))
            self._times[name] = OpTime(before.nanoseconds + end_ns - start_ns, before.num_calls + 1)

        return count


def _native_times(trace: StepTrace, ops: Ops) -> ReadOpTimes | None:
    """Return the clock of compiled kernels, which time the phases of all layers in their one call; None for others."""
    from .kernels.cpu.cpu_ops import CpuOps

    if not isinstance(ops, CpuOps):
        return None
    engine = ops.engine
    engine.profile_start()
    trace.at_end(engine.profile_stop)
    return lambda: {name: OpTime(*time) for name, time in engine.profile_read().items()}


def _describe_step(result: StepResult, step: ExecuteStep) -> dict[str, object]:
    return {
        "step_id": step.step_id,
        "rows": len(step.rows),
        "tokens": sum(row.num_scheduled_tokens for row in step.rows),
        "results": len(result.rows),
    }
