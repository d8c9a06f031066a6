"""Integers of compressed-tensors files against an independent writer: packed in words, and a byte each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pagewire.checkpoint.quantization.schemes import Int8Scheme, PackedIntScheme
from pagewire.gpu_executor.kernels.layouts import DenseWeight, Int4Weight, Int8Weight
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize
from pagewire.ipc.errors import ConfigError
from tests.support.one_layer import open_layer, unpacked
from tests.support.stored_layers import StoredLayer, int8, packed_int, with_input_scale

Options = dict[str, Any]  # Any: those of the writer and of the scheme, which are alike

OPTIONS: list[Options] = [
    {"group_size": group_size, "is_symmetric": is_symmetric, "has_permutation": has_permutation}
    for group_size in (32, 64, 128, None)
    for is_symmetric in (True, False)
    for has_permutation in (False, True)
    if group_size is not None or not has_permutation
]


def matrix(rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    spread = torch.logspace(-1, 1, rows * (columns // 32)).view(rows, -1).repeat_interleave(32, dim=1)
    return (torch.randn(rows, columns, generator=generator) + 0.5) * spread


def check(directory: Path, layer: StoredLayer, scheme: PackedIntScheme | Int8Scheme, bits: int) -> None:
    """Compare both ways of reading with what the writer says, to a rounding of each scale and minimum to float16."""
    with open_layer(directory, layer.tensors, scheme) as tensors:
        assert list(tensors) == ["weight"]
        torch.testing.assert_close(unpacked(tensors["weight"]).double(), layer.values, rtol=2**-23, atol=0)
        weight = tensors["weight"].read_matrix(None)
    assert isinstance(weight, Int4Weight if bits == 4 else Int8Weight)
    # The largest minimum is a scale times all codes; float16 has 11 bits.
    steps = layer.values.abs().amax() * 2 / 2**bits
    error = (dequantize(weight, torch.float64) - layer.values).abs().max()
    assert error <= 2**bits * 2**-11 * steps


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("options", OPTIONS)
def test_packed_integers_are_those_that_were_written(tmp_path: Path, bits: int, options: Options) -> None:
    layer = packed_int(matrix(20, 256), bits=bits, **options)
    check(tmp_path, layer, PackedIntScheme(bits=bits, **options), bits)


@pytest.mark.parametrize("options", OPTIONS)
def test_bytes_are_those_that_were_written(tmp_path: Path, options: Options) -> None:
    check(tmp_path, int8(matrix(20, 256), **options), Int8Scheme(**options), 8)


def test_last_words_may_be_half_empty(tmp_path: Path) -> None:
    layer = packed_int(matrix(13, 96)[:, :84], bits=4, group_size=None, is_symmetric=False)
    assert layer.tensors["weight_packed"].shape == (13, 11)
    assert layer.tensors["weight_zero_point"].shape == (2, 1)
    check(tmp_path, layer, PackedIntScheme(bits=4, group_size=None, is_symmetric=False), 4)


def test_one_scale_for_all_is_every_rows(tmp_path: Path) -> None:
    layer = int8(matrix(1, 64))
    for name in ("weight", "weight_scale"):
        layer.tensors[name] = layer.tensors[name].repeat(5, 1)
    layer.tensors["weight_scale"] = layer.tensors["weight_scale"][0]
    with open_layer(tmp_path, layer.tensors, Int8Scheme(group_size=None, is_symmetric=True)) as tensors:
        torch.testing.assert_close(unpacked(tensors["weight"]).double(), layer.values.repeat(5, 1))


@pytest.mark.parametrize("entry", [0, -1])
def test_order_of_zeros_or_minus_ones_means_runs_of_channels(tmp_path: Path, entry: int) -> None:
    layer = packed_int(matrix(8, 64), bits=4, group_size=32)
    layer.tensors["weight_g_idx"] = torch.full((64,), entry, dtype=torch.int32)
    check(tmp_path, layer, PackedIntScheme(bits=4, group_size=32, is_symmetric=True, has_permutation=True), 4)


def test_groups_that_no_layout_holds_become_a_plain_matrix(tmp_path: Path) -> None:
    layer = packed_int(matrix(8, 64), bits=4, group_size=16)
    with open_layer(tmp_path, layer.tensors, PackedIntScheme(bits=4, group_size=16, is_symmetric=True)) as tensors:
        weight = tensors["weight"].read_matrix(torch.float32)
    assert isinstance(weight, DenseWeight)
    torch.testing.assert_close(weight.weight.double(), layer.values, rtol=2**-23, atol=0)


def test_scale_of_8_bit_activations_is_taken(tmp_path: Path) -> None:
    layer = with_input_scale(int8(matrix(8, 64)))
    layer.tensors["input_zero_point"] = torch.zeros(1, dtype=torch.int8)
    check(tmp_path, layer, Int8Scheme(group_size=None, is_symmetric=True, has_static_activations=True), 8)


@pytest.mark.parametrize("group_size", [32, None])
@pytest.mark.parametrize("writer", [packed_int, int8])
def test_zero_points_of_symmetric_weights_may_be_stored_and_are_zeros(
    tmp_path: Path, writer: Callable[..., StoredLayer], group_size: int | None
) -> None:
    bits: Options = {"bits": 4} if writer is packed_int else {}
    scheme_of = PackedIntScheme if writer is packed_int else Int8Scheme
    scheme = scheme_of(group_size=group_size, is_symmetric=True, **bits)
    layer = writer(matrix(8, 64), group_size=group_size, **bits)
    zeros = torch.zeros(layer.tensors["weight_scale"].shape, dtype=torch.int8)
    layer.tensors["weight_zero_point"] = zeros
    check(tmp_path, layer, scheme, 4 if bits else 8)
    zeros[3, 0] = 1
    message = r"down_proj\.weight_zero_point'.*holds zero points other than 0.*symmetric must be false"
    with open_layer(tmp_path, layer.tensors, scheme) as tensors, pytest.raises(ConfigError, match=message):
        tensors["weight"].read_matrix(None)


PACKED = PackedIntScheme(bits=4, group_size=32, is_symmetric=False, has_permutation=True)
BYTES = Int8Scheme(group_size=32, is_symmetric=False, has_permutation=True, has_static_activations=True)


def stored(writer: Callable[..., StoredLayer]) -> dict[str, torch.Tensor]:
    bits = {"bits": 4} if writer is packed_int else {}
    layer = writer(matrix(8, 64), group_size=32, is_symmetric=False, has_permutation=True, **bits)
    return layer.tensors if writer is packed_int else with_input_scale(layer).tensors


@pytest.mark.parametrize(
    ("writer", "name"),
    [
        *((packed_int, name) for name in stored(packed_int)),
        *((int8, name) for name in stored(int8)),
    ],
)
def test_each_missing_tensor_is_named(tmp_path: Path, writer: Callable[..., StoredLayer], name: str) -> None:
    rest = {other: tensor for other, tensor in stored(writer).items() if other != name}
    scheme = PACKED if writer is packed_int else BYTES
    with pytest.raises(ConfigError, match=rf"lacks .*down_proj\.{name}$"), open_layer(tmp_path, rest, scheme):
        pass


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("weight_packed", torch.zeros(8, 9, dtype=torch.int32), r"shape \[8, 9\].*ask for \[8, 8\]"),
        ("weight_packed", torch.zeros(8, 8), r"stored as F32; the format asks for I32"),
        ("weight_shape", torch.tensor([8, 0]), r"holds \[8, 0\], which is the shape of no weight"),
        ("weight_shape", torch.tensor([8]), r"shape \[1\].*ask for \[2\]"),
        ("weight_scale", torch.ones(8, 4), r"shape \[8, 4\].*ask for \[8, 2\]"),  # of groups of 16
        ("weight_scale", torch.ones(8, 2, dtype=torch.int8), r"stored as I8"),
        ("weight_zero_point", torch.zeros(8, 2, dtype=torch.int32), r"shape \[8, 2\].*ask for \[1, 2\]"),
        ("weight_zero_point", torch.zeros(1, 2, dtype=torch.int8), r"stored as I8"),
        ("weight_g_idx", torch.zeros(63, dtype=torch.int32), r"shape \[63\].*ask for \[64\]"),
    ],
)
def test_wrong_parts_of_packed_integers_are_named_before_any_is_read(
    tmp_path: Path, name: str, tensor: torch.Tensor, message: str
) -> None:
    changed = stored(packed_int) | {name: tensor}
    with pytest.raises(ConfigError, match=rf"down_proj\.{name}'.*{message}"), open_layer(tmp_path, changed, PACKED):
        pass


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("weight", torch.zeros(8, 64, dtype=torch.uint8), r"stored as U8; the format asks for I8"),
        ("weight_scale", torch.ones(8, 1), r"shape \[8, 1\].*ask for \[8, 2\]"),
        ("weight_zero_point", torch.ones(8, 2), r"stored as F32"),
        ("weight_g_idx", torch.zeros(64), r"stored as F32"),
        ("input_scale", torch.ones(64), r"shape \[64\]"),
    ],
)
def test_wrong_parts_of_bytes_are_named_before_any_is_read(
    tmp_path: Path, name: str, tensor: torch.Tensor, message: str
) -> None:
    changed = stored(int8) | {name: tensor}
    with pytest.raises(ConfigError, match=rf"down_proj\.{name}'.*{message}"), open_layer(tmp_path, changed, BYTES):
        pass


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "weight_g_idx",
            torch.full((64,), 2, dtype=torch.int32),
            r"gives input channel 0 to group 2; there are groups 0 to 1",
        ),
        ("weight_scale", torch.full((8, 2), torch.nan), r"holds a scale that is no finite number"),
    ],
)
def test_damaged_numbers_are_named_when_they_are_read(
    tmp_path: Path, name: str, tensor: torch.Tensor, message: str
) -> None:
    with (
        open_layer(tmp_path, stored(packed_int) | {name: tensor}, PACKED) as tensors,
        pytest.raises(ConfigError, match=rf"down_proj\.{name}'.*{message}"),
    ):
        tensors["weight"].read_matrix(None)
