"""AWQ layers against an independent writer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pagewire.checkpoint.quantization.schemes import AWQScheme
from pagewire.gpu_executor.kernels.layouts import Int4Weight
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize
from pagewire.ipc.errors import ConfigError
from tests.support.one_layer import open_layer, unpacked
from tests.support.quantized_writers import awq

SCHEME = AWQScheme(group_size=32)


def matrix(rows: int = 16, columns: int = 256) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, columns, generator=generator) + 0.25


@pytest.mark.parametrize("group_size", [None, 32, 64, 128])
@pytest.mark.parametrize("rows", [8, 24])
def test_weights_are_those_that_were_written(tmp_path: Path, group_size: int | None, rows: int) -> None:
    layer = awq(matrix(rows), group_size=group_size)
    with open_layer(tmp_path, layer.tensors, AWQScheme(group_size=group_size)) as tensors:
        torch.testing.assert_close(unpacked(tensors["weight"]).double(), layer.values, rtol=2**-23, atol=0)
        weight = tensors["weight"].read_matrix(None)
    assert isinstance(weight, Int4Weight)
    step = layer.tensors["scales"].double().max()
    assert (dequantize(weight, torch.float64) - layer.values).abs().max() <= 2**4 * 2**-11 * step


def test_word_holds_even_channels_before_odd_ones(tmp_path: Path) -> None:
    # A word whose bits, lowest first, are 0 to 7: channel 2 has the second code, channel 1 the fifth.
    tensors = {
        "qweight": torch.full((32, 1), 0x76543210, dtype=torch.int32),
        "qzeros": torch.zeros(1, 1, dtype=torch.int32),
        "scales": torch.ones(1, 8),
    }
    with open_layer(tmp_path, tensors, SCHEME) as read:
        assert unpacked(read["weight"])[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


@pytest.mark.parametrize("name", ["qweight", "qzeros", "scales"])
def test_each_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = awq(matrix()).tensors
    del tensors[name]
    with pytest.raises(ConfigError, match=rf"lacks .*down_proj\.{name}$"), open_layer(tmp_path, tensors, SCHEME):
        pass


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("qweight", torch.zeros(256, dtype=torch.int32), r"has shape \[256\]"),
        ("qweight", torch.zeros(256, 2), r"stored as F32; the format asks for I32"),
        ("scales", torch.ones(2, 16), r"shape \[2, 16\].*ask for \[8, 16\]"),  # of groups of 128
        ("scales", torch.ones(8, 16, dtype=torch.int32), r"stored as I32"),
        ("qzeros", torch.zeros(2, 2, dtype=torch.int32), r"shape \[2, 2\].*ask for \[8, 2\]"),
        ("qzeros", torch.zeros(8, 2), r"stored as F32"),
    ],
)
def test_wrong_parts_are_named_before_any_is_read(
    tmp_path: Path, name: str, tensor: torch.Tensor, message: str
) -> None:
    changed = awq(matrix()).tensors | {name: tensor}
    with pytest.raises(ConfigError, match=rf"down_proj\.{name}'.*{message}"), open_layer(tmp_path, changed, SCHEME):
        pass


def test_group_index_has_no_place(tmp_path: Path) -> None:
    tensors = awq(matrix()).tensors | {"g_idx": torch.zeros(256, dtype=torch.int32)}
    with open_layer(tmp_path, tensors, SCHEME) as read:
        assert "g_idx" in read  # which the loader refuses, as any tensor that the model does not have
