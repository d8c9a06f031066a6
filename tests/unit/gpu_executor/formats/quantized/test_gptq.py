"""GPTQ layers against an independent writer: both formats of zero points, stated, unstated and stated wrongly."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.checkpoint.quantization.schemes import GPTQScheme
from pagewire.gpu_executor.formats.quantized.bit_packing import unpack_columns, unpack_rows
from pagewire.gpu_executor.kernels.layouts import Int4Weight, Int8Weight
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize
from pagewire.ipc.errors import ConfigError
from tests.support.one_layer import open_layer, unpacked
from tests.support.quantized_writers import gptq
from tests.support.stored_layers import StoredLayer


def matrix(rows: int = 16, columns: int = 256) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, columns, generator=generator) + 0.25


def scheme(**changes: Any) -> GPTQScheme:
    return GPTQScheme(**{"bits": 4, "group_size": 32, "is_symmetric": True, "zero_offset": 1, **changes})


def check(directory: Path, layer: StoredLayer, scheme: GPTQScheme) -> None:
    """Compare both ways of reading with what the writer says, to a rounding of each minimum to float16."""
    with open_layer(directory, layer.tensors, scheme) as tensors:
        assert list(tensors) == ["weight"]
        torch.testing.assert_close(unpacked(tensors["weight"]).double(), layer.values, rtol=2**-23, atol=0)
        weight = tensors["weight"].read_matrix(None)
    assert isinstance(weight, Int4Weight if scheme.bits == 4 else Int8Weight)
    # A minimum is at most 2^bits scales; float16 has 11 bits.
    step = layer.tensors["scales"].double().max()
    assert (dequantize(weight, torch.float64) - layer.values).abs().max() <= 2**scheme.bits * 2**-11 * step


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [None, 32, 64, 128])
@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize("zero_offset", [0, 1])
@pytest.mark.parametrize("has_act_order", [False, True])
def test_weights_are_those_that_were_written(
    tmp_path: Path, bits: int, group_size: int | None, is_symmetric: bool, zero_offset: int, has_act_order: bool
) -> None:
    options: dict[str, Any] = {
        "bits": bits,
        "group_size": group_size,
        "is_symmetric": is_symmetric,
        "zero_offset": zero_offset,
    }
    check(tmp_path, gptq(matrix(), **options, has_act_order=has_act_order), GPTQScheme(**options))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("stored_offset", [0, 1])
@pytest.mark.parametrize("stated_offset", [0, 1, None])
def test_zero_points_of_symmetric_layers_are_read_by_what_they_are(
    tmp_path: Path, bits: int, stored_offset: int, stated_offset: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    layer = gptq(matrix(), bits=bits, zero_offset=stored_offset)
    with caplog.at_level(logging.WARNING):
        check(tmp_path, layer, scheme(bits=bits, zero_offset=stated_offset))
    assert bool(caplog.records) == (stated_offset not in (None, stored_offset))
    assert all("qzeros" in record.getMessage() for record in caplog.records)


def test_zero_points_that_nothing_is_stated_of_are_the_first_formats(tmp_path: Path) -> None:
    check(tmp_path, gptq(matrix(), is_symmetric=False), scheme(is_symmetric=False, zero_offset=None))


def test_zero_points_of_zero_come_back_though_their_subtraction_borrows(tmp_path: Path) -> None:
    weight = matrix()
    weight[::2] = weight[::2].abs() + 0.1
    layer = gptq(weight, is_symmetric=False)
    assert layer.values[::2].min() >= 0
    check(tmp_path, layer, scheme(is_symmetric=False))


@pytest.mark.parametrize("zero_offset", [None, 0, 1])
def test_zero_points_that_no_symmetric_layer_has_are_refused(tmp_path: Path, zero_offset: int | None) -> None:
    layer = gptq(matrix(), is_symmetric=False)
    with (
        open_layer(tmp_path, layer.tensors, scheme(zero_offset=zero_offset)) as tensors,
        pytest.raises(ConfigError, match=r"down_proj\.qzeros'.*symmetric.*stored as 7 \(gptq\) or 8 \(gptq_v2\)"),
    ):
        tensors["weight"].read_matrix(None)


def test_groups_are_runs_of_channels_where_nothing_else_is_stored(tmp_path: Path) -> None:
    check(tmp_path, gptq(matrix(), has_group_index=False), scheme())
    for entry in (0, -1):
        unordered = gptq(matrix())
        unordered.tensors["g_idx"].fill_(entry)
        check(tmp_path, unordered, scheme())


@pytest.mark.parametrize("group", [-1, 8])
def test_channel_of_no_group_is_named(tmp_path: Path, group: int) -> None:
    layer = gptq(matrix())
    layer.tensors["g_idx"][70] = group
    with (
        open_layer(tmp_path, layer.tensors, scheme()) as tensors,
        pytest.raises(ConfigError, match=rf"down_proj\.g_idx'.*channel 70 to group {group}; there are groups 0 to 7"),
    ):
        tensors["weight"].read_matrix(None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scales_may_be_of_any_float_type(tmp_path: Path, dtype: torch.dtype) -> None:
    layer = gptq(matrix())
    scales = layer.tensors["scales"]
    rounded = scales.to(dtype)
    layer.tensors["scales"] = rounded
    # By rows: each value is a whole number of scales.
    ratio = (rounded.double() / scales.double()).t().repeat_interleave(32, dim=1)
    check(tmp_path, StoredLayer(layer.tensors, layer.values * ratio), scheme())


def test_bias_goes_on_as_it_is(tmp_path: Path) -> None:
    tensors = gptq(matrix()).tensors | {"bias": torch.ones(16)}
    with open_layer(tmp_path, tensors, scheme()) as read:
        assert set(read) == {"weight", "bias"}


@pytest.mark.parametrize("name", ["qweight", "qzeros", "scales"])
def test_each_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = gptq(matrix()).tensors
    del tensors[name]
    with pytest.raises(ConfigError, match=rf"lacks .*down_proj\.{name}$"), open_layer(tmp_path, tensors, scheme()):
        pass


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("qweight", torch.zeros(256), r"stored as F32|has shape \[256\]"),
        ("qweight", torch.zeros(32, 16), r"stored as F32; the format asks for I32"),
        ("scales", torch.ones(4, 16), r"shape \[4, 16\].*ask for \[8, 16\]"),  # of groups of 64
        ("scales", torch.ones(8, 16, dtype=torch.int32), r"stored as I32"),
        ("qzeros", torch.zeros(8, 16, dtype=torch.int32), r"shape \[8, 16\].*ask for \[8, 2\]"),
        ("qzeros", torch.zeros(8, 2), r"stored as F32"),
        ("g_idx", torch.zeros(255, dtype=torch.int32), r"shape \[255\].*ask for \[256\]"),
        ("g_idx", torch.zeros(256), r"stored as F32"),
    ],
)
def test_wrong_parts_are_named_before_any_is_read(
    tmp_path: Path, name: str, tensor: torch.Tensor, message: str
) -> None:
    changed = gptq(matrix()).tensors | {name: tensor}
    with pytest.raises(ConfigError, match=rf"down_proj\.{name}'.*{message}"), open_layer(tmp_path, changed, scheme()):
        pass


@pytest.mark.parametrize("stated", [4, 8])
def test_wrong_bits_do_not_go_with_the_scales(tmp_path: Path, stated: int) -> None:
    layer = gptq(matrix(), bits=12 - stated)
    with (
        pytest.raises(ConfigError, match=r"down_proj\.scales'"),
        open_layer(tmp_path, layer.tensors, scheme(bits=stated)),
    ):
        pass


def test_packed_layer_that_is_said_to_be_plain_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"down_proj\.q.*is not quantized"),
        open_layer(tmp_path, gptq(matrix()).tensors, None),
    ):
        pass


def test_plain_layer_that_is_said_to_be_packed_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"lacks .*down_proj\.qweight"),
        open_layer(tmp_path, {"weight": matrix()}, scheme()),
    ):
        pass


@given(
    words=st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=3, max_size=3), min_size=1, max_size=5),
    bits=st.sampled_from([4, 8]),
)
@settings(deadline=None, max_examples=50)
def test_codes_lie_in_a_word_from_its_lowest_bits_on(words: list[list[int]], bits: int) -> None:
    expected = [
        [word % 2**32 >> shift & (2**bits - 1) for word in row for shift in range(0, 32, bits)] for row in words
    ]
    rows = torch.tensor(words, dtype=torch.int32)
    assert unpack_rows(rows, bits).tolist() == expected
    assert unpack_columns(rows.t().contiguous(), bits).tolist() == expected


def test_matrix_of_several_chunks_is_unpacked_whole() -> None:
    words = torch.randint(
        -(2**31), 2**31 - 1, (2048, 300), dtype=torch.int32, generator=torch.Generator().manual_seed(0)
    )
    assert torch.equal(unpack_columns(words, 4), unpack_rows(words.t(), 4))
