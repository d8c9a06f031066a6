"""KV scales under all their names become one pair a layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pagewire.gpu_executor.formats.kv_scales import canonical_scale_names, with_canonical_scales
from pagewire.gpu_executor.formats.safetensors import open_safetensors
from pagewire.ipc.errors import ConfigError

KEY, VALUE = "model.layers.3.self_attn.k_scale", "model.layers.3.self_attn.v_scale"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("k_scale", (KEY,)),
        ("v_scale", (VALUE,)),
        ("attn.k_scale", (KEY,)),
        ("attn.v_scale", (VALUE,)),
        ("k_proj.k_scale", (KEY,)),
        ("v_proj.v_scale", (VALUE,)),
        ("k_proj.output_scale", (KEY,)),
        ("v_proj.output_scale", (VALUE,)),
        ("qkv_proj.k_scale", (KEY,)),
        ("qkv_proj.v_scale", (VALUE,)),
        ("kv_scale", (KEY, VALUE)),
        ("attn.kv_scale", (KEY, VALUE)),
        ("k_proj.v_scale", ()),
        ("q_proj.output_scale", ()),
        ("q_scale", ()),
        ("k_proj.weight_scale", ()),
        ("k_proj.input_scale", ()),
        ("k_proj.weight", ()),
    ],
)
def test_every_spelling_has_one_meaning(name: str, expected: tuple[str, ...]) -> None:
    assert canonical_scale_names(f"model.layers.3.self_attn.{name}") == expected


def stored(directory: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, directory / "model.safetensors")
    return directory


def test_scales_are_renamed_to_scalars_and_nothing_else_is_touched(tmp_path: Path) -> None:
    path = stored(
        tmp_path,
        {
            "model.layers.0.self_attn.k_proj.weight": torch.zeros(4, 8),
            "model.layers.0.self_attn.k_proj.k_scale": torch.tensor([0.5]),
            "model.layers.0.self_attn.v_proj.v_scale": torch.tensor(0.25),
            "model.layers.1.self_attn.kv_scale": torch.tensor(2.0),
        },
    )
    with open_safetensors(path) as tensors:
        shapes = {tensor.name: tensor.shape for tensor in with_canonical_scales(tensors)}
        assert {tensor.name for tensor in tensors}.isdisjoint({KEY, VALUE})  # what was read stays as it was
    assert shapes == {
        "model.layers.0.self_attn.k_proj.weight": (4, 8),
        "model.layers.0.self_attn.k_scale": (),
        "model.layers.0.self_attn.v_scale": (),
        "model.layers.1.self_attn.k_scale": (),
        "model.layers.1.self_attn.v_scale": (),
    }


@pytest.mark.parametrize(
    ("first", "second"), [("k_scale", "k_proj.k_scale"), ("kv_scale", "v_scale"), ("attn.v_scale", "v_proj.v_scale")]
)
def test_two_scales_for_one_purpose_are_refused_by_both_names(tmp_path: Path, first: str, second: str) -> None:
    prefix = "model.layers.0.self_attn"
    path = stored(tmp_path, {f"{prefix}.{name}": torch.tensor(0.5) for name in (first, second)})
    with open_safetensors(path) as tensors, pytest.raises(ConfigError) as caught:
        with_canonical_scales(tensors)
    assert f"'{prefix}.{first}'" in str(caught.value)
    assert f"'{prefix}.{second}'" in str(caught.value)


@pytest.mark.parametrize("shape", [(2,), (4, 1, 1), (0,)])
def test_scale_that_is_not_one_number_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = stored(tmp_path, {"model.layers.0.self_attn.attn.k_scale": torch.ones(shape)})
    with open_safetensors(path) as tensors, pytest.raises(ConfigError, match=r"attn\.k_scale.*one number a layer"):
        with_canonical_scales(tensors)
