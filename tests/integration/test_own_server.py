"""Commands that are given a model start an engine of their own, and leave nothing behind, whatever ends them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pagewire.frontend.terminal.open_connection import open_connection
from pagewire.ipc.config import EngineConfig, ModelOptions
from pagewire.ipc.errors import ConfigError
from tests.support.children import descendants_of, is_alive, wait_until
from tests.support.http_server import joined_text
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

TIMEOUT_S = 120.0


def engine(path: Path) -> EngineConfig:
    return EngineConfig(model=ModelOptions(model=str(path)), log_level="warning")


def test_a_model_is_served_for_one_command_and_gone_with_it(capfd: pytest.CaptureFixture[str]):
    lines: list[str] = []
    path = tiny_checkpoint("llama")
    others = set(descendants_of(os.getpid()))  # of tests before
    with open_connection(None, None, engine(path), lines.append) as connection:
        children = set(descendants_of(os.getpid())) - others
        assert children
        model = connection.choose_model(None)
        events: list[dict[str, object]] = []
        body = {"model": model, "prompt": "a", "max_tokens": 4, "temperature": 0, "stream": True, "ignore_eos": True}
        connection.stream("/v1/completions", body, events.append)
        assert joined_text(events) != ""
    assert not any(is_alive(child) for child in children)
    assert lines[0].startswith(f"Starting an engine for {path}")
    assert lines[1].startswith("Ready after ")
    assert capfd.readouterr().err == ""


def test_a_model_that_is_not_there_is_told_before_anything_starts():
    with pytest.raises(ConfigError, match="no such file"), open_connection(None, None, engine(Path("/nowhere")), print):
        pytest.fail("it should not start")


def test_a_batch_is_answered_by_a_model(tmp_path: Path):
    path = tiny_checkpoint("llama")
    requests = [
        {"custom_id": str(i), "url": "/v1/completions", "body": {"model": str(path), "prompt": "a", "max_tokens": 2}}
        for i in range(3)
    ]
    (tmp_path / "in").write_text("\n".join(map(json.dumps, requests)))
    command = [sys.executable, "-m", "pagewire", "run-batch", "-i", "in", "-o", "out", "--model", str(path)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert result.returncode == 0, result.stderr
    answers = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert sorted(answer["custom_id"] for answer in answers) == ["0", "1", "2"]
    assert {answer["response"]["status_code"] for answer in answers} == {200}


def test_a_killed_command_leaves_no_process():
    command = [sys.executable, "-m", "pagewire", "complete", str(tiny_checkpoint("llama")), "a", "--max-tokens", "4000"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while not process.stderr.readline().startswith("Ready after"):
        assert process.poll() is None
    children = descendants_of(process.pid)
    assert children
    process.send_signal(signal.SIGKILL)
    process.wait(TIMEOUT_S)
    process.stderr.close()
    wait_until(lambda: not any(is_alive(child) for child in children), 30.0, "the children's end")
