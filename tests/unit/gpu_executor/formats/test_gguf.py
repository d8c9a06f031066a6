from __future__ import annotations

from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pagewire.checkpoint.gguf_file import GGUFFile
from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.formats.gguf import iterate_gguf
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_gguf


@pytest.mark.parametrize(
    ("family", "quant"),
    [
        ("llama", "F16"),
        ("llama", "Q4_1"),
        ("qwen2", "Q8_0"),
        ("qwen3", "Q6_K"),
        ("phi3", "Q8_0"),
        ("granite", "F16"),
        ("mixtral", "Q4_K"),
        ("qwen3_moe", "Q8_0"),
    ],
)
def test_every_tensor_is_the_hugging_face_one(family: str, quant: str) -> None:
    tiny = tiny_gguf(family, quant, attention_bias=family in ("granite", "llama"))  # type: ignore[arg-type]  # parametrized names
    expected = load_file(tiny.reference / "model.safetensors")
    config = load_model_config(tiny.path)
    with GGUFFile(tiny.path) as file:
        for tensor in iterate_gguf(file, config):
            unpacked = torch.empty(tensor.shape)
            tensor.copy_to(unpacked)
            assert torch.equal(unpacked, expected.pop(tensor.name)), tensor.name
    assert not expected


def test_type_that_cannot_be_read_is_refused_with_the_tensors_name(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    blocks = np.zeros((2, 110), dtype=np.uint8)
    writer.add_tensor("blk.0.attn_v.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.IQ3_S)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = msgspec.structs.replace(load_model_config(tiny_gguf().path), model_path=str(path))
    with GGUFFile(path) as file:
        (tensor,) = iterate_gguf(file, config)
        with pytest.raises(ConfigError, match=r"blk\.0\.attn_v\.weight.*IQ3_S.*IQ4_NL.*Q4_0"):
            tensor.copy_to(torch.empty(tensor.shape))


def test_stack_of_another_number_of_experts_than_stated_is_refused() -> None:
    path = tiny_gguf("mixtral", num_experts=4).path
    config = load_model_config(path)
    assert config.mixture is not None
    config = msgspec.structs.replace(config, mixture=msgspec.structs.replace(config.mixture, num_experts=5))
    with GGUFFile(path) as file, pytest.raises(ConfigError, match=r"blk\.0\.ffn_gate_exps.*\[4, 128, 64\].*5 experts"):
        list(iterate_gguf(file, config))


def test_error_names_the_expert() -> None:
    path = tiny_gguf("qwen3_moe", num_experts=4).path
    with GGUFFile(path) as file:
        sources = [t.source for t in iterate_gguf(file, load_model_config(path)) if "experts.3.up_proj" in t.name]
    assert sources[0] == f"{path}, tensor 'blk.0.ffn_up_exps.weight[3]'"
