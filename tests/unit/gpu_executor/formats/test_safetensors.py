from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.gpu_executor.formats.safetensors import iterate_safetensors
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_checkpoint


def test_tensors_of_all_shards_are_read_once_in_any_dtype() -> None:
    directory = tiny_checkpoint("llama", num_shards=2, dtype="bfloat16")
    expected = {name: t for shard in directory.glob("*.safetensors") for name, t in load_file(shard).items()}
    for tensor in iterate_safetensors(directory):
        converted = torch.empty(tensor.shape)
        tensor.copy_to(converted)
        assert torch.equal(converted, expected.pop(tensor.name).float()), tensor.name
    assert not expected


def test_integer_tensor_is_refused_by_name(tmp_path: Path) -> None:
    save_file({"model.norm.weight": torch.zeros(4, dtype=torch.int32)}, tmp_path / "model.safetensors")
    (tensor,) = list(iterate_safetensors(tmp_path))
    with pytest.raises(ConfigError, match=r"model\.norm\.weight.*I32"):
        tensor.copy_to(torch.empty(4))
