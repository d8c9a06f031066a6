"""Recommended sampling values are read as they are written, and impossible ones are refused at start."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest

from pagewire.checkpoint.generation_config import GenerationDefaults, load_generation_defaults, override_defaults
from pagewire.checkpoint.sources.packaged import SMOLLM2
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_gguf


def test_values_of_generation_config_are_read(tmp_path: Path) -> None:
    assert load_generation_defaults(tmp_path) == GenerationDefaults()
    content = {
        "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05, "max_new_tokens": 2048,
        "eos_token_id": [7, 8], "do_sample": True, "transformers_version": "4.37.0",
    }  # fmt: skip
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    assert load_generation_defaults(tmp_path) == GenerationDefaults(
        temperature=0.7, top_p=0.8, top_k=20, min_p=0.0, repetition_penalty=1.05, max_tokens=2048, eos_token_ids=(7, 8)
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -1),
        ("temperature", 2.5),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", 0.5),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e5),
        ("max_new_tokens", 0),
        ("eos_token_id", [-1]),
    ],
)
def test_impossible_value_is_named(tmp_path: Path, key: str, value: object) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({key: value}))
    with pytest.raises(ConfigError, match=key) as caught:
        load_generation_defaults(tmp_path)
    assert str(tmp_path) in caught.value.message


def test_gguf_recommends_only_what_its_sampling_metadata_says(tmp_path: Path) -> None:
    assert load_generation_defaults(tiny_gguf("llama", "F32").path) == GenerationDefaults()
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_float32("general.sampling.temp", 0.5)
    writer.add_int32("general.sampling.top_k", 20)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert load_generation_defaults(path) == GenerationDefaults(temperature=0.5, top_k=20)


def test_packaged_model_is_drawn_from_as_its_authors_do(tmp_path: Path) -> None:
    path = tmp_path / SMOLLM2.file_name
    path.write_bytes(tiny_gguf("llama", "F32").path.read_bytes())
    assert load_generation_defaults(path) == GenerationDefaults(), "another file of that name"
    with path.open("r+b") as file:
        file.truncate(SMOLLM2.num_bytes)  # the rest is a hole
    assert load_generation_defaults(path) == GenerationDefaults(temperature=0.2, top_p=0.9)


def test_what_a_user_gives_stands_over_the_checkpoints_own() -> None:
    own = GenerationDefaults(temperature=0.5, top_k=20, eos_token_ids=(1,))
    values = {"temperature": 1, "top_k": None, "max_new_tokens": 7}
    assert override_defaults(own, values) == GenerationDefaults(temperature=1.0, max_tokens=7, eos_token_ids=(1,))
    assert override_defaults(own, {}) == own


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", 3), ("top_k", -2), ("top_k", "many"), ("max_new_tokens", 0), ("eos_token_id", 1), ("stop", "x")],
)
def test_impossible_override_is_named_by_its_flag(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match="--override-generation-config") as caught:
        override_defaults(GenerationDefaults(), {name: value})
    assert name.replace("max_new_tokens", "max_") in caught.value.message
