"""Each program of `examples/` runs as it stands there and says what it promises.

They run inside the process of the tests, which spares each the import of openai.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.running_server import RunningServer
from tests.support.tiny_model import tiny_checkpoint
from tools.tiny_model.lora_writer import write_adapter
from tools.tiny_model.spec import TinyModelSpec

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Example = Callable[..., str]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Example:
    """Run a program with arguments and return what it printed."""

    def run(name: str, *arguments: str) -> str:
        path = str(EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *arguments])
        runpy.run_path(path, run_name="__main__")
        return capsys.readouterr().out

    return run


def test_chat_server(example: Example, smollm2: RunningServer):
    assert "Paris" in example("chat_server", smollm2.url)


def test_streaming(example: Example, smollm2: RunningServer):
    assert "tokens in" in example("streaming", smollm2.url)


def test_structured_output(example: Example, smollm2: RunningServer):
    described, choice = example("structured_output", smollm2.url).splitlines()
    assert "'city': " in described
    assert choice in ("positive", "negative")


def test_tool_calling(example: Example, smollm2: RunningServer):
    call, answer = example("tool_calling", smollm2.url).splitlines()[:2]
    assert call.startswith("call: get_weather {'city': ")
    assert answer.startswith("answer: ")


def test_embeddings(example: Example, smollm2: RunningServer):
    assert "Cats" in example("embeddings", smollm2.url).splitlines()[0]


def run_batch(url: str, commands: Path = Path(sys.executable).parent) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    command = ["sh", str(EXAMPLES / "batch.sh"), url]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_batch(smollm2: RunningServer):
    out = run_batch(smollm2.url)
    assert out.returncode == 0, out.stderr
    asked = [json.loads(line) for line in (EXAMPLES / "batch.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [f'"custom_id":"{each["custom_id"]}"' in out.stdout for each in asked] == [True] * 3
    assert out.stdout.count('"status_code":200') == 3


def test_batch_that_fails_shows_why_all_the_same(tmp_path: Path):
    command = tmp_path / "pagewire"
    command.write_text('#!/bin/sh\nwhile [ "$1" != --output-file ]; do shift; done\necho refused > "$2"\nexit 1\n')
    command.chmod(0o755)
    out = run_batch("http://nowhere", tmp_path)
    assert (out.returncode, out.stdout) == (1, "refused\n")


def test_offline(example: Example):
    assert "'The capital of France is' -> ' Paris" in example("offline")


def test_beam_search(example: Example):
    scores = [float(line.split()[0]) for line in example("beam_search", str(tiny_checkpoint())).splitlines()]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_lora(example: Example, tmp_path: Path):
    adapter = write_adapter(TinyModelSpec(family="llama"), tmp_path / "adapter", seed=1)
    adapted, plain = example("lora", str(tiny_checkpoint()), str(adapter)).splitlines()
    assert adapted.startswith("with the adapter: ")
    assert adapted.partition(": ")[2] != plain.partition(": ")[2]


def test_lora_says_what_it_needs(example: Example):
    with pytest.raises(SystemExit, match="MODEL ADAPTER"):
        example("lora")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[str]:
    address = f"ipc://{tempfile.mkdtemp(prefix='pw-')}/engine.sock"
    running = RunningServer(["engine", "--max-model-len", "1024", "--listen", address], tmp_path)
    yield address
    assert running.stop() == 0


def test_embedded_client(example: Example, engine: str):
    assert "the same alone and in company: True" in example("embedded_client", engine)


def test_engine_and_frontends(example: Example):
    lines = example("engine_and_frontends").splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["program", "first server", "second server"]
    assert len({line.partition(": ")[2] for line in lines}) == 1
