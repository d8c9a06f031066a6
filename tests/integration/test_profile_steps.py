"""`--profile-steps` with real processes: one file, every process's part in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagewire.frontend.offline.llm import LLM
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.tiny_model import tiny_checkpoint
from tools.measure_pipeline import read_stages

OPTIONS = {"max_model_len": 64, "kv_cache_memory_bytes": 2**20, "log_level": "warning"}


@pytest.mark.slow
def test_core_and_executor_show_the_same_steps_on_one_clock(tmp_path: Path):
    file = tmp_path / "trace.json"
    with LLM(str(tiny_checkpoint()), profile_steps=str(file), **OPTIONS) as llm:
        llm.generate([[5, 6, 7]], SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
    events = json.loads(file.read_text())
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert set(names.values()) == {"core", "executor", "supervisor"}
    spans = [event for event in events if event["ph"] == "X"]
    flights = {span["args"]["step_id"]: span for span in spans if span["name"].startswith("step ")}
    steps = {span["args"]["step_id"]: span for span in spans if span["name"] == "step"}
    assert len(steps) >= 4
    assert flights.keys() == steps.keys()
    for step_id, step in steps.items():
        flight = flights[step_id]
        # A dispatched step may begin before the core's own look at the clock.
        assert flight["ts"] - 1e5 < step["ts"] < step["ts"] + step["dur"] < flight["ts"] + flight["dur"]


@pytest.mark.slow
def test_each_pipeline_stage_shows_what_it_waited_for(tmp_path: Path):
    file = tmp_path / "trace.json"
    prompts = [[5, 6, 7], [8, 9], [3], [4, 4]]
    with LLM(str(tiny_checkpoint()), profile_steps=str(file), pipeline_parallel_size=2, **OPTIONS) as llm:
        llm.generate(prompts, SamplingParams(max_tokens=6, ignore_eos=True), use_tqdm=False)
    first, second = read_stages(json.loads(file.read_text()))
    assert (first.name, second.name) == ("executor 0", "executor 1")
    assert first.num_steps == second.num_steps >= 12, "two micro-batches of six tokens"
    assert first.for_stage_s == 0.0
    assert second.for_stage_s > 0.0
    assert first.for_core_s > 0.0
    assert 0.0 < second.busy_s < second.end_s - second.begin_s


def test_a_file_that_can_not_be_made_is_refused_before_anything_starts():
    with pytest.raises(ConfigError, match=r"--profile-steps /no/such/x\.json can't be written"):
        LLM(str(tiny_checkpoint()), profile_steps="/no/such/x.json", **OPTIONS)
