"""`--profile-steps` with real processes: one file, every process's part in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagewire.frontend.offline.llm import LLM
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.tiny_model import tiny_checkpoint

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


def test_a_file_that_can_not_be_made_is_refused_before_anything_starts():
    with pytest.raises(ConfigError, match=r"--profile-steps /no/such/x\.json can't be written"):
        LLM(str(tiny_checkpoint()), profile_steps="/no/such/x.json", **OPTIONS)
