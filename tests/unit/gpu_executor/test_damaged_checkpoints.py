"""A checkpoint that is damaged, half written or incomplete is refused by file and tensor before anything is served."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.models.base import Model
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.weights import load_weights
from pagewire.ipc.errors import ConfigError
from tests.support.quantized_writers import awq, gptq, write_quantized
from tests.support.stored_layers import StoredLayer, fp8, int8, packed_int
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf

INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
COMPRESSED = {"quant_method": "compressed-tensors", "ignore": ["lm_head"]}


def compressed(file_format: str, **weights: object) -> dict[str, object]:
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "symmetric": True, **weights}}
    return {**COMPRESSED, "format": file_format, "config_groups": {"group_0": group}}


Writer = Callable[[torch.Tensor], StoredLayer]
# By the part of a layer that has its scales: how its layers are written, and what config.json says of it.
FORMATS: dict[str, tuple[str, Writer | None, dict[str, object]]] = {
    "plain": ("weight", None, {}),
    "gptq": (
        "scales", gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    ),
    "awq": ("scales", awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}),
    "fp8": ("weight_scale", fp8, {"quant_method": "fp8"}),
    "int8": ("weight_scale", int8, compressed("int-quantized", strategy="channel")),
    "packed": (
        "weight_scale",
        partial(packed_int, bits=4, group_size=32),
        compressed("pack-quantized", num_bits=4, strategy="group", group_size=32),
    ),
}  # fmt: skip


def checkpoint(directory: Path, name: str) -> Path:
    """Write a tiny checkpoint of a format, in two shards with an index."""
    _, writer, quantization = FORMATS[name]

    def write(module: str, weight: torch.Tensor) -> StoredLayer | None:
        return writer(weight) if writer is not None and module != "lm_head" else None

    path, _ = write_quantized(tiny_checkpoint("llama"), directory, write, quantization)
    if writer is None:
        edit_config(path, lambda config: config.pop("quantization_config"))
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = dict(zip(SHARDS, (names[::2], names[1::2]), strict=True))
    for shard, members in halves.items():
        save_file({member: tensors[member] for member in members}, path / shard)
    weight_map = {member: shard for shard, members in halves.items() for member in members}
    (path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return path


def edit_config(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((path / "config.json").read_text())
    edit(config)
    (path / "config.json").write_text(json.dumps(config))


def edit_index(path: Path, edit: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((path / INDEX).read_text())
    edit(index["weight_map"])
    (path / INDEX).write_text(json.dumps(index))


def edit_header(path: Path, shard: str, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change a file's header and nothing else: offsets count from its end."""
    whole = (path / shard).read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    edit(header)
    changed = json.dumps(header).encode()
    (path / shard).write_bytes(struct.pack("<Q", len(changed)) + changed + whole[8 + length :])


def load(path: Path) -> Model:
    config = load_model_config(path)
    model = build_model(config, select_ops("reference"), dtype=torch.float32, device=torch.device("cpu"))
    load_weights(model, config)
    return model


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return caught.value.message


every_format = pytest.mark.parametrize("name", FORMATS)


@every_format
def test_the_undamaged_checkpoint_loads(tmp_path: Path, name: str) -> None:
    load(checkpoint(tmp_path, name))


@every_format
def test_missing_shard_is_named_with_the_number_of_its_tensors(tmp_path: Path, name: str) -> None:
    path = checkpoint(tmp_path, name)
    (path / SHARDS[1]).unlink()
    message = refusal(path)
    assert f"lacks {SHARDS[1]}, which hold" in message
    assert str(path) in message


@every_format
@pytest.mark.parametrize("kept_bytes", [0, 5, 300, -1])
def test_half_written_shard_is_named(tmp_path: Path, name: str, kept_bytes: int) -> None:
    path = checkpoint(tmp_path, name)
    whole = (path / SHARDS[0]).read_bytes()
    (path / SHARDS[0]).write_bytes(whole[:kept_bytes])
    message = refusal(path)
    assert str(path / SHARDS[0]) in message
    assert "truncated" in message
    assert "fetch it again" in message


@every_format
def test_tensor_that_its_shard_lacks_is_named(tmp_path: Path, name: str) -> None:
    path = checkpoint(tmp_path, name)
    edit_index(path, lambda weight_map: weight_map.update({"model.norm.weight": wrong_shard(weight_map)}))
    message = refusal(path)
    assert "lacks the tensor 'model.norm.weight'" in message
    assert "model-0000" in message


def wrong_shard(weight_map: dict[str, str]) -> str:
    return SHARDS[1 - SHARDS.index(weight_map["model.norm.weight"])]


@every_format
def test_tensor_that_the_index_leaves_out_is_missing(tmp_path: Path, name: str) -> None:
    path = checkpoint(tmp_path, name)
    part = FORMATS[name][0]
    lost = f"model.layers.1.mlp.down_proj.{part}"
    edit_index(path, lambda weight_map: weight_map.pop(lost))
    assert f"lacks {lost}" in refusal(path)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "plain"])
def test_scale_that_is_no_number_is_named(tmp_path: Path, name: str, value: float) -> None:
    path = checkpoint(tmp_path, name)
    scale = f"model.layers.1.mlp.down_proj.{FORMATS[name][0]}"
    shard = json.loads((path / INDEX).read_text())["weight_map"][scale]
    tensors = load_file(path / shard)
    tensors[scale].view(-1)[0] = value
    save_file(tensors, path / shard)
    message = refusal(path)
    assert repr(scale) in message
    assert "no finite number" in message


def test_packed_layers_without_their_configuration_are_told_from_strange_ones(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "gptq")
    edit_config(path, lambda config: config.pop("quantization_config"))
    assert "has no quantization_config" in refusal(path)


@every_format
def test_tensors_that_share_bytes_are_named(tmp_path: Path, name: str) -> None:
    path = checkpoint(tmp_path, name)

    def move(header: dict[str, Any]) -> None:
        norms = [entry for key, entry in sorted(header.items()) if key.endswith("layernorm.weight")]
        norms[1]["data_offsets"] = norms[0]["data_offsets"]

    edit_header(path, SHARDS[0], move)
    message = refusal(path)
    assert str(path / SHARDS[0]) in message
    assert "layernorm.weight' and 'model.layers." in message


@every_format
@pytest.mark.parametrize("offset", [1 << 40, -64])
def test_tensor_beyond_its_file_is_named(tmp_path: Path, name: str, offset: int) -> None:
    path = checkpoint(tmp_path, name)
    moved: list[str] = []

    def move(header: dict[str, Any]) -> None:
        key = next(key for key in sorted(header) if key.endswith("layernorm.weight"))
        header[key]["data_offsets"] = [place + offset for place in header[key]["data_offsets"]]
        if offset < 0:
            header[key]["data_offsets"] = [offset, offset + 256]
        moved.append(key)

    edit_header(path, SHARDS[0], move)
    message = refusal(path)
    assert str(path / SHARDS[0]) in message
    assert repr(moved[0]) in message


def test_copy_of_a_tensor_in_another_shard_is_not_the_one_that_counts(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "plain")
    index = json.loads((path / INDEX).read_text())["weight_map"]
    other = wrong_shard(index)
    save_file({**load_file(path / other), "model.norm.weight": torch.full((64,), torch.nan)}, path / other)
    model = load(path)
    assert model.norm.weight.isfinite().all()  # type: ignore[attr-defined]  # this family has it


@pytest.mark.parametrize("stated", ["gptq", ["gptq"], 4])
def test_quantization_that_is_no_object_is_named(tmp_path: Path, stated: object) -> None:
    path = checkpoint(tmp_path, "plain")
    edit_config(path, lambda config: config.update(quantization_config=stated))
    message = refusal(path)
    assert str(path / "config.json") in message
    assert "quantization_config must be an object" in message


def test_gguf_tensor_in_two_files_is_named(tmp_path: Path) -> None:
    source = tiny_gguf("llama", "Q4_0", num_shards=2).path
    first, second = (source.with_name(f"tiny-0000{number}-of-00002.gguf") for number in (1, 2))
    for target in (first, second):
        (tmp_path / target.name).write_bytes(first.read_bytes())
    message = refusal(tmp_path / first.name)
    assert str(tmp_path / second.name) in message
    assert "which another shard lists too" in message
