"""fp8 layers against an independent writer, and what of them is refused before anything is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from pagewire.checkpoint.quantization.schemes import Fp8Scheme
from pagewire.gpu_executor.kernels.cpu.kernel_layouts import in_kernel_layouts
from pagewire.gpu_executor.kernels.layouts import Fp8Weight, Int8Weight
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize
from pagewire.ipc.errors import ConfigError
from tests.support.one_layer import open_layer, unpacked
from tests.support.stored_layers import StoredLayer, fp8, with_input_scale

TENSOR, CHANNEL = Fp8Scheme(granularity="tensor"), Fp8Scheme(granularity="channel")
STATIC = Fp8Scheme(granularity="tensor", has_static_activations=True)


def blocks(rows: int, columns: int) -> Fp8Scheme:
    return Fp8Scheme(granularity="block", block_shape=(rows, columns))


def matrix(rows: int, columns: int) -> torch.Tensor:
    spread = torch.logspace(-2, 1, rows).unsqueeze(1)  # so that a scale of the wrong row shows
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * spread


def check(directory: Path, layer: StoredLayer, scheme: Fp8Scheme) -> Fp8Weight:
    """Compare both ways of reading with what the writer says; return the packed one."""
    with open_layer(directory, layer.tensors, scheme) as tensors:
        assert list(tensors) == ["weight"]
        tensor = tensors["weight"]
        weight = tensor.read_matrix(None)
        assert isinstance(weight, Fp8Weight)
        assert tensor.matrix_bytes(None) == weight.codes.nbytes
        # A product of float32 numbers, rounded once.
        torch.testing.assert_close(unpacked(tensor).double(), layer.values, rtol=2**-23, atol=0)
    torch.testing.assert_close(dequantize(weight, torch.float64), layer.values, rtol=1e-15, atol=0)
    return weight


def test_one_scale_for_all(tmp_path: Path) -> None:
    weight = check(tmp_path, fp8(matrix(40, 48)), TENSOR)
    assert (weight.tile_rows, weight.tile_columns) == (40, 48)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_scale_of_a_matrix_may_have_any_shape_of_one_number(tmp_path: Path, shape: tuple[int, ...]) -> None:
    layer = fp8(matrix(1, 32))
    layer.tensors["weight_scale"] = layer.tensors["weight_scale"].reshape(shape)
    check(tmp_path, layer, TENSOR)


@pytest.mark.parametrize("shape", [(40,), (40, 1)])
def test_scale_a_row(tmp_path: Path, shape: tuple[int, ...]) -> None:
    layer = fp8(matrix(40, 48), (1, 48))
    layer.tensors["weight_scale"] = layer.tensors["weight_scale"].reshape(shape)
    weight = check(tmp_path, layer, CHANNEL)
    assert (weight.tile_rows, weight.tile_columns) == (1, 48)


@pytest.mark.parametrize(
    ("block", "tile"),
    [((128, 128), (128, 128)), ((1, 128), (1, 128)), ((64, 128), (1, 128)), ((256, 256), (128, 128)),
     ((128, 512), (128, 300)), ((96, 384), (1, 300))],
)  # fmt: skip
@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_scales_by_block_become_scales_by_tile(
    tmp_path: Path, block: tuple[int, int], tile: tuple[int, int], name: str
) -> None:
    weight = check(tmp_path, fp8(matrix(200, 300), block, scale_name=name), blocks(*block))
    assert (weight.tile_rows, weight.tile_columns) == tile


@pytest.mark.parametrize("shape", [(), (1,)])
def test_scale_of_activations_is_taken(tmp_path: Path, shape: tuple[int, ...]) -> None:
    check(tmp_path, with_input_scale(fp8(matrix(8, 32)), shape), STATIC)


def test_what_is_no_part_of_the_packing_goes_on_as_it_is(tmp_path: Path) -> None:
    layer = with_input_scale(fp8(matrix(8, 32)))
    with open_layer(tmp_path, layer.tensors | {"bias": torch.zeros(8)}, TENSOR) as tensors:
        assert sorted(tensors) == ["bias", "input_scale", "weight"]


@pytest.mark.parametrize(
    ("change", "scheme", "message"),
    [
        ({"weight_scale": None}, TENSOR, r"lacks model\.layers\.0\.mlp\.down_proj\.weight_scale$"),
        ({"weight": None}, TENSOR, r"lacks .*down_proj\.weight$"),
        ({}, STATIC, r"lacks .*down_proj\.input_scale$"),
        ({"weight": torch.zeros(8, 32).to(torch.float8_e5m2)}, TENSOR, r"\.weight'.*F8_E5M2.*asks for F8_E4M3"),
        ({"weight": torch.zeros(8, 32).bfloat16()}, TENSOR, r"down_proj\.weight'.*stored as BF16"),
        ({"weight": torch.zeros(256).to(torch.float8_e4m3fn)}, TENSOR, r"down_proj\.weight'.*shape \[256\]"),
        ({"weight_scale": torch.ones(7, 1)}, TENSOR, r"_scale'.*shape \[7, 1\].*\[8, 1\] or \[8\] or \[\] or \[1\]"),
        ({"weight_scale": torch.ones(1, dtype=torch.int32)}, TENSOR, r"weight_scale'.*I32.*F32 or F16 or BF16"),
        ({"weight_scale": torch.ones(1, 2)}, blocks(128, 128), r"weight_scale'.*\[1, 2\].*ask for \[1, 1\]"),
        ({"weight_scale": torch.ones(1, 1)}, blocks(128, 16), r"weight_scale'.*blocks of 128 x 16.*multiple of 128"),
        ({"input_scale": torch.ones(8)}, STATIC, r"input_scale'.*shape \[8\]"),
    ],
)  # fmt: skip
def test_wrong_parts_are_named_before_any_is_read(
    tmp_path: Path, change: dict[str, torch.Tensor | None], scheme: Fp8Scheme, message: str
) -> None:
    changed = fp8(matrix(8, 32)).tensors | change
    stored = {name: tensor for name, tensor in changed.items() if tensor is not None}
    with pytest.raises(ConfigError, match=message), open_layer(tmp_path, stored, scheme):
        pass


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("weight", torch.full((8, 32), torch.nan).to(torch.float8_e4m3fn)),
        ("weight_scale", torch.tensor(torch.inf)),
        ("input_scale", torch.tensor([0.0])),
    ],
)
def test_damaged_numbers_are_named_when_they_are_read(tmp_path: Path, name: str, tensor: torch.Tensor) -> None:
    stored = with_input_scale(fp8(matrix(8, 32))).tensors | {name: tensor}
    with (
        open_layer(tmp_path, stored, STATIC) as tensors,
        pytest.raises(ConfigError, match=rf"{re.escape(name)}'.*damaged"),
    ):
        tensors["weight"].read_matrix(None)


@pytest.mark.parametrize("scale", [8_319_008.0, 8_319_009.0, 1e38])
def test_weights_that_no_backend_can_hold_are_named_and_all_others_can_be_prepared(
    tmp_path: Path, scale: float
) -> None:
    stored = {"weight": torch.eye(32).to(torch.float8_e4m3fn), "weight_scale": torch.tensor(scale)}
    with open_layer(tmp_path, stored, TENSOR) as tensors:
        if scale > 8_319_008:
            with pytest.raises(ConfigError, match=r"down_proj\.weight'.*8,319,008.*weight_scale'.*damaged"):
                tensors["weight"].read_matrix(None)
            return
        weight = tensors["weight"].read_matrix(None)
    (part,), _ = in_kernel_layouts(weight)
    assert isinstance(part, Int8Weight)
    assert torch.equal(dequantize(part), scale * torch.eye(32))
