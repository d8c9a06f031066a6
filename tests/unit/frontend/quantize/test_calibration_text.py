"""Samples of text: cut into sequences that begin as the model's texts do, or refused with the remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagewire.frontend.quantize.calibration_text import calibration_ids, read_sequences
from pagewire.frontend.tokenizer.tokenizer import load_tokenizer
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_checkpoint

TEXT = "The keeper trims the lamp and writes the weather in a book. " * 200


def test_sequences_are_the_head_of_the_text_each_begun_by_itself(tmp_path: Path):
    model, path = tiny_checkpoint("llama"), tmp_path / "text"
    path.write_text(TEXT)
    tokenizer = load_tokenizer(model)
    start, ids = tokenizer.encode("", add_special_tokens=True), tokenizer.encode(TEXT, add_special_tokens=False)
    with calibration_ids(model, path, 2600) as samples:
        sequences = json.loads(samples.read_bytes())
    assert not samples.exists()
    assert [len(sequence) for sequence in sequences] == [512] * 5
    length = 512 - len(start)
    assert all(sequence[: len(start)] == start for sequence in sequences)
    assert [token_id for sequence in sequences for token_id in sequence[len(start) :]] == ids[: 5 * length]


def test_sequences_fit_the_context_and_the_text(tmp_path: Path):
    model, path = tiny_checkpoint("llama", max_position=96), tmp_path / "text"
    path.write_text(TEXT)
    sequences = read_sequences(model, path, 10**9)
    assert {len(sequence) for sequence in sequences} == {96}


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "can't be read: No such file or directory; name a file of text"),
        (b"\xff\xfe\x00", "is no text in UTF-8; name a file of plain text"),
        (b"short", "tokens, and 2,048 are the least that say what a layer is given; name a longer text"),
    ],
)
def test_text_that_can_not_be_used_is_refused_with_the_remedy(tmp_path: Path, content: bytes | None, part: str):
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=part), calibration_ids(tiny_checkpoint("llama"), path, 8192):
        pass
