"""Parts of packed weights: what a rank of several holds is a part of the whole, in the same layout where it can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pagewire.checkpoint.quantization.schemes import (
    AWQScheme,
    Fp8Scheme,
    GPTQScheme,
    Int8Scheme,
    PackedIntScheme,
    RoundedScheme,
    Scheme,
)
from pagewire.gpu_executor.formats.safetensors import SafetensorsTensor
from pagewire.gpu_executor.formats.tensor_part import TensorPart
from pagewire.gpu_executor.kernels.layouts import DenseWeight, Fp8Weight, Int4Weight, Int8Weight
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize
from tests.support.one_layer import open_layer, unpacked
from tests.support.parts import check_part, part_of, parts
from tests.support.quantized_writers import awq, gptq
from tests.support.stored_layers import StoredLayer, fp8, int8, packed_int

SHAPE = (24, 256)
GENERATOR_SEED = 3


def matrix(shape: tuple[int, int] = SHAPE) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(GENERATOR_SEED)) + 0.25


def gptq_layer(**options: Any) -> tuple[StoredLayer, Scheme]:
    """A layer and its scheme; options are those of `gptq`."""
    layer = gptq(matrix(), **options)
    named = {"bits": 4, "group_size": 32, "is_symmetric": True, "zero_offset": 1}
    return layer, GPTQScheme(**named | {name: value for name, value in options.items() if name in named})


def compressed(write: Callable[..., StoredLayer], scheme: type[Scheme], **options: Any) -> tuple[StoredLayer, Scheme]:
    """A layer of compressed-tensors and its scheme."""
    return write(matrix(), **options), scheme(**{"is_symmetric": True, "has_permutation": False, **options})


def fp8_layer(block: tuple[int, int] | None, shape: tuple[int, int] = SHAPE) -> tuple[StoredLayer, Scheme]:
    granularity = "tensor" if block is None else "block"
    scheme: dict[str, Any] = {"granularity": granularity, "block_shape": block}
    return fp8(matrix(shape), block), Fp8Scheme(**scheme)


LAYERS: dict[str, Callable[[], tuple[StoredLayer, Scheme]]] = {
    "gptq": lambda: gptq_layer(group_size=128, is_symmetric=False),
    "gptq by row": lambda: gptq_layer(group_size=None, bits=8),
    "gptq in order of activations": lambda: gptq_layer(group_size=64, has_act_order=True),
    "awq": lambda: (awq(matrix(), group_size=64), AWQScheme(group_size=64)),
    "packed 4": lambda: compressed(packed_int, PackedIntScheme, bits=4, group_size=128, is_symmetric=False),
    "packed 8": lambda: compressed(packed_int, PackedIntScheme, bits=8, group_size=None),
    "packed in order": lambda: compressed(packed_int, PackedIntScheme, bits=4, group_size=128, has_permutation=True),
    "int8 by row": lambda: compressed(int8, Int8Scheme, group_size=None, is_symmetric=False),
    "int8 in groups": lambda: compressed(int8, Int8Scheme, group_size=64, is_symmetric=False),
    "fp8": lambda: fp8_layer(None),
    "fp8 in blocks": lambda: fp8_layer((128, 128)),
    "fp8 in small blocks": lambda: fp8_layer((8, 128)),
    "rounded to int8": lambda: (StoredLayer({"weight": matrix()}, matrix()), RoundedScheme(to="int8")),
    "rounded to fp8": lambda: (StoredLayer({"weight": matrix()}, matrix()), RoundedScheme(to="fp8")),
}


@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_part_is_that_of_the_whole(tmp_path: Path, name: str, data: st.DataObject) -> None:
    layer, scheme = LAYERS[name]()
    with open_layer(tmp_path, layer.tensors, scheme) as tensors:
        check_part(tensors["weight"], data.draw(parts(SHAPE)))


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("gptq", Int4Weight), ("gptq by row", Int8Weight), ("awq", Int4Weight), ("packed 4", Int4Weight),
        ("packed 8", Int8Weight), ("int8 by row", Int8Weight), ("int8 in groups", Int8Weight), ("fp8", Fp8Weight),
        ("rounded to int8", Int8Weight), ("rounded to fp8", Fp8Weight),
    ],
)  # fmt: skip
def test_packed_weights_stay_packed_where_groups_of_32_are_whole(tmp_path: Path, name: str, layout: type) -> None:
    layer, scheme = LAYERS[name]()
    with open_layer(tmp_path, layer.tensors, scheme) as tensors:
        weight = check_part(tensors["weight"], TensorPart((range(3, 8), range(9, 20)), range(32, 224)))
    assert type(weight) is layout


@pytest.mark.parametrize("name", LAYERS)
def test_rows_alone_never_cost_the_layout(tmp_path: Path, name: str) -> None:
    layer, scheme = LAYERS[name]()
    with open_layer(tmp_path, layer.tensors, scheme) as tensors:
        assert not isinstance(check_part(tensors["weight"], TensorPart((range(1, 4), range(17, 24)))), DenseWeight)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("part", [TensorPart(rows=(range(8, 16),)), TensorPart(columns=range(128, 256))])
def test_a_part_reads_hardly_more_than_its_bytes(
    tmp_path: Path, name: str, part: TensorPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_bytes: list[int] = []
    chunks = SafetensorsTensor._chunks

    def counted(tensor: SafetensorsTensor, itemsize: int) -> Iterator[NDArray[np.uint8]]:
        for chunk in chunks(tensor, itemsize):
            num_bytes.append(chunk.nbytes)
            yield chunk

    monkeypatch.setattr(SafetensorsTensor, "_chunks", counted)
    layer, scheme = LAYERS[name]()
    with open_layer(tmp_path, layer.tensors, scheme) as tensors:
        tensors["weight"].sliced(part).read_matrix(None)
    weight = max(tensor.nbytes for tensor in layer.tensors.values())
    others = sum(tensor.nbytes for tensor in layer.tensors.values()) - weight
    # A scale of each row needs all columns.
    columns = 1.0 if name == "rounded to fp8" else 0.5
    assert sum(num_bytes) <= weight * (columns if part.rows is None else 1 / 3) + others


def test_a_rank_may_have_no_rows(tmp_path: Path) -> None:
    layer, scheme = LAYERS["gptq"]()
    with open_layer(tmp_path, layer.tensors, scheme) as tensors:
        assert tensors["weight"].sliced(TensorPart(rows=())).read_matrix(None).out_features == 0


@pytest.mark.parametrize("group_size", [128, 32, None])
@pytest.mark.parametrize("has_act_order", [False, True])
def test_two_ranks_that_divide_channels_add_up_to_the_product_of_one(
    tmp_path: Path, group_size: int | None, has_act_order: bool
) -> None:
    layer, scheme = gptq_layer(group_size=group_size, has_act_order=has_act_order)
    activations = torch.randn(5, 256, generator=torch.Generator().manual_seed(1))
    with open_layer(tmp_path, layer.tensors, scheme) as tensors:
        whole = tensors["weight"].read_matrix(None)
        halves = [check_part(tensors["weight"], TensorPart(columns=half)) for half in (range(128), range(128, 256))]
    products = [x @ dequantize(half).t() for x, half in zip(activations.split(128, dim=1), halves, strict=True)]
    # Where groups are not whole the half is what the file says, and the whole has minima rounded to float16.
    tolerance = 16 * 2**-11 * float(layer.tensors["scales"].max()) * float(activations.abs().sum(dim=1).max())
    assert (products[0] + products[1] - activations @ dequantize(whole).t()).abs().max() < tolerance
    is_packed = not has_act_order or group_size is None
    assert all(isinstance(half, Int4Weight) == is_packed for half in halves)


@pytest.mark.parametrize("is_ordered", [False, True])
def test_an_order_of_whole_groups_stays_packed_and_is_numbered_anew(tmp_path: Path, is_ordered: bool) -> None:
    layer, scheme = gptq_layer(group_size=64)
    # Each half has 32 channels of each group.
    halves = torch.arange(256) % 128 // 32
    layer.tensors["g_idx"] = (halves.view(2, 4, 32).transpose(1, 2).reshape(-1) if is_ordered else halves).int()
    with open_layer(tmp_path, layer.tensors, scheme) as tensors:
        weight = check_part(tensors["weight"], TensorPart(columns=range(128, 256)))
        assert tensors["weight"].sliced(TensorPart(columns=range(128, 256))).matrix_bytes(None) == 24 * 128 * 5 // 8
    assert isinstance(weight, Int4Weight)
    assert (weight.permutation is not None) == is_ordered
    if weight.permutation is not None:
        assert sorted(weight.permutation.tolist()) == list(range(128))


def test_zero_points_of_a_symmetric_weight_are_checked_as_a_whole_by_each_rank(tmp_path: Path) -> None:
    layer, scheme = gptq_layer()
    layer.tensors["qzeros"][:, -1] = 0x33333333
    with (
        open_layer(tmp_path, layer.tensors, scheme) as tensors,
        pytest.raises(Exception, match="holds zero points of 3 to 7"),
    ):
        tensors["weight"].sliced(TensorPart(rows=(range(8),))).read_matrix(None)


@pytest.mark.parametrize(
    ("part", "tile"),
    [
        (TensorPart(columns=range(128, 300)), (128, 128)),
        (TensorPart(rows=(range(128, 256),)), (128, 128)),
        (TensorPart(rows=(range(64, 160),)), (1, 128)),
        (TensorPart(columns=range(140, 200)), (128, 60)),
        (TensorPart(columns=range(64, 300)), None),
    ],
    ids=["on borders", "rows on borders", "rows off borders", "in one tile", "columns off borders"],
)
def test_tiles_of_fp8_have_their_scales_by_row_rather_than_to_be_given_up(
    tmp_path: Path, part: TensorPart, tile: tuple[int, int] | None
) -> None:
    layer, scheme = fp8_layer((128, 128), (260, 300))
    with open_layer(tmp_path, layer.tensors, scheme) as tensors:
        weight = check_part(tensors["weight"], part)
        torch.testing.assert_close(
            unpacked(tensors["weight"].sliced(part)).double(), part_of(layer.values, part), rtol=2**-23, atol=0
        )
    assert (None if isinstance(weight, DenseWeight) else (weight.tile_rows, weight.tile_columns)) == tile
