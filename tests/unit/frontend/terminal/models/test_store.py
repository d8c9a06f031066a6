"""The commands about models, with a hub on localhost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagewire.frontend.terminal.models.store import readable_size
from tests.support.fake_hub import FakeHub, FakeRepo, repo_files
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    repos = {
        "acme/tiny": FakeRepo(repo_files(tiny_checkpoint("qwen3"))),
        "acme/tiny-GGUF": FakeRepo({"tiny-F16.gguf": tiny_gguf("llama", "F16").path.read_bytes()}),
    }
    with FakeHub(repos) as running:
        yield running


@pytest.fixture
def models(hub: FakeHub, tmp_path: Path) -> Run:
    """Runs `pagewire models`, with an empty cache of its own, and nobody to ask."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    places = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path), "PAGEWIRE_CACHE": str(tmp_path / "own")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pagewire", "models", *arguments],
            env={**kept, **places}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


@pytest.mark.slow
def test_a_model_is_fetched_listed_shown_and_removed(models: Run, hub: FakeHub):
    shown = models("show", "acme/tiny")
    assert "not fetched" in shown.stdout, shown.stderr
    assert hub.downloaded() == ["config.json"]
    pulled = models("pull", "acme/tiny")
    assert pulled.returncode == 0, pulled.stderr
    assert "`pagewire serve acme/tiny` serves it" in pulled.stdout
    assert "model.safetensors: 100%" in pulled.stderr
    assert "Fetching" not in pulled.stderr  # no bars of the library's own beside it
    listed = models("list").stdout
    assert "acme/tiny " in listed
    assert "1 model, " in listed
    shown = models("show", "acme/tiny").stdout
    assert "Qwen3ForCausalLM" in shown
    assert "not fetched" not in shown
    assert "did you mean acme/tiny?" in models("rm", "tiny").stderr
    asked = models("rm", "acme/tiny")
    assert (asked.returncode, "give --yes" in asked.stderr) == (2, True)
    assert "are free again" in models("rm", "acme/tiny", "--yes").stdout
    assert "There are no models yet" in models("list").stdout


@pytest.mark.slow
def test_damaged_weights_are_noticed_and_fetched_again(models: Run, tmp_path: Path):
    assert models("pull", "acme/tiny-GGUF:F16").returncode == 0
    (file,) = (tmp_path / "hub").rglob("tiny-F16.gguf")
    whole = file.read_bytes()
    file.resolve().write_bytes(whole[:-1] + b"\xff")
    again = models("pull", "acme/tiny-GGUF:F16")
    assert "Damaged, and fetched again: tiny-F16.gguf" in again.stdout, again.stderr
    assert file.read_bytes() == whole
    assert "as F16" in models("show", "acme/tiny-GGUF").stdout  # the only one of its repository that is here
    (file.resolve().parent / f"{'0' * 64}.partial").write_bytes(b"12345")
    assert "Removed acme/tiny-GGUF; 5 bytes are free again." in models("rm", "acme/tiny-GGUF", "--yes").stdout


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(12, "12 bytes"), (2048, "2.0 KiB"), (98_362_432, "93.8 MiB"), (3 << 40, "3.00 TiB")]
)
def test_sizes_are_readable(num_bytes: int, text: str):
    assert readable_size(num_bytes) == text
