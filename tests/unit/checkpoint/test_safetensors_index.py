"""The index is the allowlist per tensor, and incomplete weights are an error that names what is missing."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from pagewire.checkpoint.safetensors_index import TensorLocation, read_tensor_table
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_checkpoint


def read_values(location: TensorLocation) -> bytes:
    return location.path.read_bytes()[location.begin : location.end]


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint("llama", num_shards=2, num_layers=1), tmp_path / "model"))


def test_locations_hold_the_values_of_the_reference_reader() -> None:
    for dtype, code in (("float32", "F32"), ("float16", "F16"), ("bfloat16", "BF16")):
        directory = tiny_checkpoint("llama", dtype=dtype)
        table = read_tensor_table(directory)
        reference = load_file(directory / "model.safetensors")
        assert table.keys() == reference.keys()
        for name, tensor in reference.items():
            location = table[name]
            assert (location.dtype, location.shape) == (code, tuple(tensor.shape))
            assert read_values(location) == tensor.view(torch.uint8).numpy().tobytes()


def test_value_comes_from_the_indexed_shard_and_unindexed_tensors_are_ignored(sharded: Path) -> None:
    table = read_tensor_table(sharded)
    indexed = "model.layers.0.self_attn.q_proj.weight"
    other_shard = next(location.path for location in table.values() if location.path != table[indexed].path)
    tensors = load_file(other_shard)
    shape = table[indexed].shape
    save_file(tensors | {indexed: torch.zeros(shape), "stale.weight": torch.zeros(3)}, other_shard)
    # Neither a stale copy beside the index nor another vendor's file counts.
    save_file({indexed: torch.ones(shape)}, sharded / "consolidated.safetensors")
    save_file({indexed: torch.ones(shape)}, sharded / "model.safetensors")
    again = read_tensor_table(sharded)
    assert again.keys() == table.keys()
    assert again[indexed] == table[indexed]


def test_missing_shards_are_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"lacks model-00002-of-00002\.safetensors, which hold \d+ tensors"):
        read_tensor_table(sharded)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fraction=st.floats(0, 1, exclude_max=True))
def test_truncated_shard_is_named(sharded: Path, fraction: float) -> None:
    shard = sharded / "model-00001-of-00002.safetensors"
    whole = shard.read_bytes()
    try:
        shard.write_bytes(whole[: int(fraction * len(whole))])
        with pytest.raises(ConfigError) as caught:
            read_tensor_table(sharded)
        assert str(shard) in caught.value.message
    finally:
        shard.write_bytes(whole)


def test_tensor_that_its_shard_lacks_is_named(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.extra.weight"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"00001-of-00002\.safetensors: lacks the tensor 'model\.extra\.weight'"):
        read_tensor_table(sharded)


def test_index_may_not_lead_out_of_its_directory(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "../model.safetensors"}}))
    with pytest.raises(ConfigError, match="must name a file beside the index"):
        read_tensor_table(sharded)


def test_directory_without_weights_or_with_a_choice_of_them_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no weights"):
        read_tensor_table(tmp_path)
    save_file({"w": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
    with pytest.raises(ConfigError, match="holds no weights"):
        read_tensor_table(tmp_path)
    save_file({"w": torch.zeros(1)}, tmp_path / "only.safetensors")
    assert read_tensor_table(tmp_path)["w"].path.name == "only.safetensors"
    save_file({"v": torch.zeros(1)}, tmp_path / "second.safetensors")
    with pytest.raises(ConfigError, match="holds 2 safetensors files"):
        read_tensor_table(tmp_path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"not json", "not valid JSON"),
        (b"[]", "no JSON object"),
        (b'{"w": 1}', "'w' is malformed"),
        (b'{"w": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}', "unknown dtype 'F99'"),
        (b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "can't lie in bytes 0 to 4"),
        (b'{"w": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}', "can't lie in bytes 0 to 4"),
        (b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}', "can't lie in bytes -4 to 0"),
    ],
)
def test_impossible_header_is_refused(tmp_path: Path, header: bytes, message: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    with pytest.raises(ConfigError, match=message):
        read_tensor_table(tmp_path)


def test_tensors_that_share_bytes_are_refused_by_name(tmp_path: Path) -> None:
    entries = {
        "empty": {"dtype": "F32", "shape": [0], "data_offsets": [4, 4]},
        "second": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        "first": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    }
    header = json.dumps(entries).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    with pytest.raises(ConfigError, match=r"model\.safetensors: is damaged.*'first' and 'second'"):
        read_tensor_table(tmp_path)
