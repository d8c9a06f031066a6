"""Measure how long each pipeline stage is idle: `python -m tools.measure_pipeline [MODEL] [-pp 2] [--requests 8]`.

A real engine answers some requests at once with `--profile-steps`, and the timelines of its stage processes are read.
A stage is busy from the moment it takes up a step until that is done, less the time in which it waits for the stage
before it. The time is that from the first step's begin until the last one's end, so the filling of the pipeline and its
running dry count as idle. On CPUs, each stage should have a core of its own (--cpu-threads 1, as many cores as stages).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagewire.frontend.offline.llm import LLM
from pagewire.ipc.config import ModelOptions
from pagewire.ipc.errors import PagewireError
from pagewire.ipc.sampling_params import SamplingParams

WAIT_FOR_STAGE = "wait for the stage before"
WAIT_FOR_CORE = "wait for the core"
MICROSECONDS = 1e6
GOAL = 0.2

Event = Mapping[str, Any]  # Any: as the Trace Event Format has it, see `pagewire.ipc.step_trace`


@dataclass
class StageTimes:
    """What a timeline says of one executor.

    Attributes:
        begin_s: of its first step; `end_s` is the last one's end.
        in_steps_s: time within steps.
        for_stage_s: of that, waiting for the stage before.
        for_core_s: waiting for the next step, from the first step's begin on.
    """

    name: str
    num_steps: int = 0
    begin_s: float = float("inf")
    end_s: float = 0.0
    in_steps_s: float = 0.0
    for_stage_s: float = 0.0
    for_core_s: float = 0.0

    @property
    def busy_s(self) -> float:
        """Time in which it computed."""
        return self.in_steps_s - self.for_stage_s


def read_stages(events: Iterable[Event]) -> list[StageTimes]:
    """Return the times of each executor in a timeline, by rank.

    Args:
        events: of a file that `--profile-steps` wrote.

    Raises:
        ValueError: no executor has timed a step as a whole, as those on GPUs don't.
    """
    events = list(events)
    stages = {
        event["pid"]: StageTimes(event["args"]["name"])
        for event in events
        if event["name"] == "process_name" and event["args"]["name"].startswith("executor")
    }
    spans = [event for event in events if event["ph"] == "X" and event["pid"] in stages]
    for span in spans:
        if span["name"] == "step":
            stage = stages[span["pid"]]
            begin_s, seconds = span["ts"] / MICROSECONDS, span["dur"] / MICROSECONDS
            stage.num_steps += 1
            stage.begin_s = min(stage.begin_s, begin_s)
            stage.end_s = max(stage.end_s, begin_s + seconds)
            stage.in_steps_s += seconds
    for span in spans:
        stage = stages[span["pid"]]
        seconds = span["dur"] / MICROSECONDS
        if span["name"] == WAIT_FOR_STAGE:
            stage.for_stage_s += seconds
        elif span["name"] == WAIT_FOR_CORE and stage.begin_s < span["ts"] / MICROSECONDS < stage.end_s:
            stage.for_core_s += seconds
    if not all(stage.num_steps for stage in stages.values()):
        raise ValueError("the timeline has no steps of the executors; on GPUs the device's times stand in `finish`")
    return sorted(stages.values(), key=lambda stage: stage.name)


def idle_shares(stages: Iterable[StageTimes]) -> list[float]:
    """Return each stage's part of the common time in which it did not compute."""
    stages = list(stages)
    span_s = max(stage.end_s for stage in stages) - min(stage.begin_s for stage in stages)
    return [1 - stage.busy_s / span_s for stage in stages]


def main() -> int:
    """Print a table; return 0 if every stage is idle for less than the goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default=ModelOptions().model, help="by default the packaged one")
    parser.add_argument("-pp", "--pipeline-parallel-size", type=int, default=2)
    parser.add_argument("--requests", type=int, default=8, help="answered at the same time")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=100, help="of each answer")
    parser.add_argument("--cpu-threads", type=int, default=1, help="of each stage")
    args = parser.parse_args()
    try:
        stages, tokens_per_s = measure(args)
    except (PagewireError, ValueError) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    shares = idle_shares(stages)
    print(
        f"{args.requests} requests of {args.prompt_tokens} + {args.tokens} tokens, {len(stages)} stages of "
        f"{args.cpu_threads} thread(s), {os.cpu_count()} CPUs: {tokens_per_s:.1f} output tokens/s"
    )
    print("stage        steps  ms/step  waits for: stage, s  core, s   idle")
    for stage, share in zip(stages, shares, strict=True):
        step_ms = 1000 * stage.busy_s / stage.num_steps
        print(
            f"{stage.name:11} {stage.num_steps:6} {step_ms:8.2f} {stage.for_stage_s:20.2f} {stage.for_core_s:8.2f} "
            f"{share:6.1%}"
        )
    return 0 if max(shares) < GOAL else 1


def measure(args: argparse.Namespace) -> tuple[list[StageTimes], float]:
    """Answer the requests; return the stages' times, and output tokens per second of the time that they span."""
    params = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)
    prompts = [[1000 + 37 * i + j for j in range(args.prompt_tokens)] for i in range(args.requests)]
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "timeline.json"
        with LLM(
            args.model,
            pipeline_parallel_size=args.pipeline_parallel_size,
            cpu_threads=args.cpu_threads,
            max_model_len=args.prompt_tokens + args.tokens,
            max_num_seqs=args.requests,
            profile_steps=str(file),
            log_level="warning",
        ) as llm:
            llm.generate(prompts, params, use_tqdm=False)
        stages = read_stages(json.loads(file.read_text()))
    span_s = max(stage.end_s for stage in stages) - min(stage.begin_s for stage in stages)
    return stages, args.requests * args.tokens / span_s


if __name__ == "__main__":
    sys.exit(main())
