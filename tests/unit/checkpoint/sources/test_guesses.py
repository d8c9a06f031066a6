"""What a name without a model may have meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.checkpoint.sources.guesses import guess


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub's cache with two models, and no packaged one."""
    monkeypatch.setenv("PAGEWIRE_CACHE", str(tmp_path / "own"))
    for folder, file in (("acme--tiny", "model.safetensors"), ("acme--other-GGUF", "other-Q8_0.gguf")):
        snapshot = tmp_path / f"models--{folder}" / "snapshots" / "1"
        snapshot.mkdir(parents=True)
        for name in ("config.json", file):
            (snapshot / name).write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("acme/tinny", "acme/tiny, which was fetched"),
        ("else/tiny", "acme/tiny, which was fetched"),
        ("tiny", "acme/tiny, which was fetched"),
        ("acme/other-GGUF", "acme/other-GGUF:Q8_0, which was fetched"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct (the packaged model)"),
        ("https://huggingface.co/acme/tiny/tree/main", "acme/tiny"),
        ("hf.co/acme/other-GGUF:Q8_0", "acme/other-GGUF:Q8_0"),
    ],
)
def test_a_model_that_is_here_is_offered(cache: Path, name: str, meant: str):
    assert guess(name, cache) == f"; did you mean {meant}?"


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "a", "org/", "x/y"])
def test_nothing_is_offered_where_nothing_is_alike(cache: Path, name: str):
    assert guess(name, cache) == ""
