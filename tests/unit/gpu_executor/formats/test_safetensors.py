from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.gpu_executor.formats.safetensors import open_safetensors
from pagewire.gpu_executor.kernels.layouts import DenseWeight
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_checkpoint


def test_tensors_of_all_shards_are_read_once_in_any_dtype() -> None:
    directory = tiny_checkpoint("llama", num_shards=2, dtype="bfloat16")
    expected = {name: t for shard in directory.glob("*.safetensors") for name, t in load_file(shard).items()}
    with open_safetensors(directory) as tensors:
        for tensor in tensors:
            converted = torch.empty(tensor.shape)
            tensor.copy_to(converted)
            assert torch.equal(converted, expected.pop(tensor.name).float()), tensor.name
    assert not expected


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_matrix_is_read_as_it_is_stored_or_as_asked_for(dtype: torch.dtype | None) -> None:
    with open_safetensors(tiny_checkpoint("llama", dtype="bfloat16")) as tensors:
        tensor = next(tensor for tensor in tensors if len(tensor.shape) == 2)
        weight = tensor.read_matrix(dtype)
        values = torch.empty(tensor.shape)
        tensor.copy_to(values)
        assert isinstance(weight, DenseWeight)
        assert weight.weight.dtype == (dtype or torch.bfloat16)
        assert torch.equal(weight.weight, values.to(weight.weight.dtype))
        assert tensor.matrix_bytes(dtype) == weight.weight.nbytes


def test_integer_tensor_is_refused_by_name(tmp_path: Path) -> None:
    save_file({"model.norm.weight": torch.zeros(4, dtype=torch.int32)}, tmp_path / "model.safetensors")
    with open_safetensors(tmp_path) as (tensor,), pytest.raises(ConfigError, match=r"model\.norm\.weight.*I32"):
        tensor.copy_to(torch.empty(4))
