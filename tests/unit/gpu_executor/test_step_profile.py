from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zmq

from pagewire.gpu_executor.core_inbox import CoreInbox
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.step_profile import trace_channel, trace_runner
from pagewire.ipc.channels import PairChannel, open_socket
from pagewire.ipc.codec import to_executor
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.step_trace import StepTrace, begin_trace_file, end_trace_file
from tests.support.runner import Row, RunnerDriver, make_runner
from tests.support.tiny_model import tiny_checkpoint

NUM_LAYERS = 2


def spans_of_a_run(path: Path, kernels: str) -> list[dict[str, Any]]:
    """Three steps of one request, timed."""
    begin_trace_file(str(path))
    trace = StepTrace(str(path), "executor")
    runner = make_runner(tiny_checkpoint(), kernels=kernels)
    trace_runner(trace, runner, runner.model._ops)
    row = Row(row_id=1, prompt=[5, 6, 7], sampling=Sampling(temperature=1.0, seed=3), block_table=[0, 1])
    RunnerDriver(runner).run([row], num_tokens=3)
    trace.close()
    end_trace_file(str(path))
    return [event for event in json.loads(path.read_text()) if event["ph"] == "X"]


def inside(outer: dict[str, Any], spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    end = outer["ts"] + outer["dur"]
    return [span for span in spans if span is not outer and outer["ts"] <= span["ts"] < end]


def test_a_step_is_made_of_its_parts_and_a_forward_of_its_ops(tmp_path: Path):
    spans = spans_of_a_run(tmp_path / "trace.json", "reference")
    steps = [span for span in spans if span["name"] == "step"]
    assert [(step["args"]["rows"], step["args"]["tokens"]) for step in steps] == [(1, 3), (1, 1), (1, 1)]
    parts = [span["name"] for span in inside(steps[1], spans)]
    assert {"plan", "build inputs", "forward", "output layer", "sample"} <= set(parts)
    (forward,) = [span for span in inside(steps[1], spans) if span["name"] == "forward"]
    calls = {span["name"]: span["args"]["calls"] for span in inside(forward, spans)}
    assert calls["paged_attention"] == NUM_LAYERS
    assert calls["linear"] == 4 * NUM_LAYERS
    total = sum(span["dur"] for span in inside(forward, spans))
    assert 0 < total <= forward["dur"]


def test_compiled_kernels_tell_the_phases_of_their_one_call(tmp_path: Path):
    if select_ops("auto").name != "cpu":
        pytest.skip("there are no compiled kernels")
    spans = spans_of_a_run(tmp_path / "trace.json", "cpu")
    forward = [span for span in spans if span["name"] == "forward"][1]
    ops = inside(forward, spans)
    assert all(span["args"]["calls"] >= 1 for span in ops)
    assert {"attention", "down"} <= {span["name"] for span in ops}


def test_an_untimed_runner_is_as_it_was(tmp_path: Path):
    begin_trace_file(str(tmp_path / "x"))
    trace = StepTrace(str(tmp_path / "x"), "executor")
    runner = make_runner(tiny_checkpoint())
    trace_runner(trace, runner, runner.model._ops)
    trace.close()
    for part in (runner, runner.model, runner.batch, runner.sampler, runner.model._ops):
        assert not [name for name, value in vars(part).items() if getattr(value, "__name__", "") == "timed"]


def test_waiting_for_the_core_is_told(tmp_path: Path):
    path = tmp_path / "trace.json"
    begin_trace_file(str(path))
    trace = StepTrace(str(path), "executor")
    context = zmq.Context()
    socket = open_socket(context, zmq.PAIR)
    socket.bind("inproc://executor")
    channel = PairChannel(socket, to_executor)
    trace_channel(trace, channel)
    assert not CoreInbox(channel, 1).wait(0)
    channel.close()
    context.term()
    trace.close()
    end_trace_file(str(path))
    assert [event["name"] for event in json.loads(path.read_text()) if event["ph"] == "X"] == ["wait for the core"]
