"""Files are what the reference library reads, whatever the order of writing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from pagewire.checkpoint.safetensors_index import read_tensor_table
from pagewire.gpu_executor.formats.writing.packing import TensorSpec
from pagewire.gpu_executor.formats.writing.safetensors_writer import SafetensorsWriter

TENSORS = {
    "odd": torch.arange(5, dtype=torch.uint8),
    "fp8": torch.ones(3, 3).to(torch.float8_e4m3fn),
    "half": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
    "scalar": torch.tensor(2.5),
    "shape": torch.tensor([3, 4]),
    "words": torch.arange(8, dtype=torch.int32),
}
SPECS = [TensorSpec(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in TENSORS.items()]


def write(directory: Path, max_file_bytes: int) -> None:
    with SafetensorsWriter(directory, SPECS, max_file_bytes) as writer:
        for name in reversed(TENSORS):
            writer.write(name, TENSORS[name])


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name].float(), other[name].float()) for name in one
    )


def test_one_file_has_no_index(tmp_path: Path):
    write(tmp_path, 10**9)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert equal(load_file(tmp_path / "model.safetensors"), TENSORS)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_tensors_lie_at_multiples_of_their_size(tmp_path: Path):
    write(tmp_path, 10**9)
    for name, location in read_tensor_table(tmp_path).items():
        assert location.begin % TENSORS[name].dtype.itemsize == 0, name


def test_files_are_filled_up_to_their_limit_and_indexed(tmp_path: Path):
    write(tmp_path, 24)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert list(index["weight_map"]) == list(TENSORS)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in TENSORS.values())
    files = sorted(set(index["weight_map"].values()))
    # odd and fp8 are 14 bytes; half and scalar 16; shape 16; words 32, beyond the limit, alone.
    assert files == [f"model-{number:05d}-of-00004.safetensors" for number in range(1, 5)]
    assert equal({k: v for name in files for k, v in load_file(tmp_path / name).items()}, TENSORS)


def test_tensor_that_was_never_written_is_noticed(tmp_path: Path):
    with pytest.raises(AssertionError, match="never written: odd"), SafetensorsWriter(tmp_path, SPECS[:1], 100):
        pass
