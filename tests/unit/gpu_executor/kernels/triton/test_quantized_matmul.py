"""Products with packed weights: those of the weights they stand for, whatever the shape, and a row's bits its own."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.layouts import Fp8Weight, Int4Weight, Int8Weight
from tests.support.planted import PRECISION_ERRORS, assert_notices
from tests.support.products import TOLERANCES, assert_product, random_rows
from tests.support.weights import random_fp8, random_int4, random_int8, with_large_groups

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton.launches.products import INVARIANT_ROWS, QUANTIZED_MATMUL
from pagewire.gpu_executor.kernels.triton.launches.row import pick
from pagewire.gpu_executor.kernels.triton.packed_weight import PackedWeight, pack_fp8, pack_int4, pack_int8
from pagewire.gpu_executor.kernels.triton.quantized_matmul import quantized_matmul

pytestmark = pytest.mark.usefixtures("poisoned_memory")

Quantized = Int4Weight | Int8Weight | Fp8Weight

# Rows that end within a tile and beyond one; channels that end within a group, a unit and a step, and that are enough
# for each of four splits.
WEIGHTS = {
    "int4": lambda: random_int4(37, 200, has_bias=True),
    "int4-even": lambda: random_int4(20, 256),
    "int4-all-splits": lambda: random_int4(20, 480, has_bias=True),
    "int8": lambda: random_int8(37, 160),
    "int8-minimum": lambda: random_int8(5, 96, has_minimum=True, has_bias=True),
    "int8-half": lambda: random_int8(37, 96, 16),
    "int8-half-minimum": lambda: random_int8(20, 160, 16, has_minimum=True),
    "int8-least-code": lambda: with_least_codes(random_int8(37, 160)),
    "int8-half-minimum-least-code": lambda: with_least_codes(random_int8(20, 160, 16, has_minimum=True)),
    # Groups of a unit and of a step, which end within one; of the whole row.
    "int4-64": lambda: with_large_groups(random_int4(37, 200, has_bias=True), 64),
    "int4-128": lambda: with_large_groups(random_int4(37, 200), 128),
    "int4-128-all-splits": lambda: with_large_groups(random_int4(20, 480), 128),
    "int4-row": lambda: with_large_groups(random_int4(20, 320), 320),
    "int8-64": lambda: with_large_groups(random_int8(37, 160), 64),
    "int8-64-minimum": lambda: with_large_groups(random_int8(37, 96, has_minimum=True), 64),
    "int8-128": lambda: with_large_groups(random_int8(37, 160, has_bias=True), 128),
    "int8-row-minimum": lambda: with_large_groups(random_int8(37, 192, has_minimum=True), 192),
    "int8-half-of-64": lambda: with_large_groups(random_int8(37, 160, 16), 64),
    "fp8": lambda: random_fp8(37, 200, 37, 200),
    "fp8-rows": lambda: random_fp8(37, 150, 1, 150, has_bias=True),
    "fp8-tiles": lambda: random_fp8(132, 300, 128, 128),
}


def with_least_codes(weight: Int8Weight) -> Int8Weight:
    """The weight with some codes of -128, which has no opposite."""
    codes = weight.codes.clone()
    codes[::3, ::5] = -128
    return replace(weight, codes=codes)


def pack(weight: Quantized) -> PackedWeight:
    match weight:
        case Int4Weight():
            return pack_int4(weight)
        case Int8Weight():
            return pack_int8(weight)
        case Fp8Weight():
            return pack_fp8(weight)


def multiply(x: Tensor, weight: Quantized, *, num_rows_as: int | None = None) -> Tensor:
    out = torch.full((x.shape[0], weight.out_features), torch.nan, dtype=x.dtype)
    quantized_matmul(x, pack(weight), out, num_rows_as=num_rows_as)
    return out


@pytest.mark.parametrize("name", WEIGHTS)
def test_product_is_that_of_the_weights_it_stands_for(name: str) -> None:
    weight = WEIGHTS[name]()
    x = random_rows(5, weight.in_features)
    assert_product(multiply(x, weight), x, weight)


@pytest.mark.parametrize("name", ["int4", "int4-128", "int8", "int8-64", "int8-half-minimum", "fp8-tiles"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_product_of_16_bits_rounds_each_weight_and_the_sum(name: str, dtype: torch.dtype) -> None:
    weight = WEIGHTS[name]()
    x = random_rows(5, weight.in_features, dtype)
    assert_product(multiply(x, weight), x, weight)


@pytest.mark.parametrize("num_rows", [1, 16, 17, 65, 130])
def test_product_is_right_for_each_tile_of_rows(num_rows: int) -> None:
    weight = random_int4(40, 96)
    x = random_rows(num_rows, 96)
    assert_product(multiply(x, weight), x, weight)


@pytest.mark.parametrize("row", range(len(QUANTIZED_MATMUL)))
def test_product_is_right_by_each_launch_row(row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows for matrices that are too large for a test compute small ones as well."""
    monkeypatch.setattr(
        "pagewire.gpu_executor.kernels.triton.quantized_matmul.pick", lambda rows, **shape: QUANTIZED_MATMUL[row]
    )
    weight = random_int4(130, 200, has_bias=True)
    x = random_rows(3, 200)
    assert_product(multiply(x, weight), x, weight)


@pytest.mark.parametrize(
    ("weight", "num_bits"),
    [
        (random_int4(128, 512), 5),
        (with_large_groups(random_int4(128, 512), 64), 4.5),
        (with_large_groups(random_int4(128, 512), 128), 4.25),
        (random_int8(128, 512), 8.5),
        (with_large_groups(random_int8(128, 512), 64), 8.25),
        (with_large_groups(random_int8(128, 512), 512), 8.125),
        (with_large_groups(random_int8(128, 512, has_minimum=True), 128), 8.25),
    ],
)
def test_scales_of_large_groups_are_kept_once_a_unit_or_step(weight: Int4Weight | Int8Weight, num_bits: float) -> None:
    packed = pack(weight)
    assert 8 * (packed.words.nbytes + packed.scales.nbytes) == num_bits * 128 * 512


def test_scale_that_differs_in_one_row_is_kept() -> None:
    weight = with_large_groups(random_int4(37, 256), 128)
    weight.scale[36, 7] *= 2
    x = random_rows(5, 256)
    assert_product(multiply(x, weight), x, weight)
    assert pack(weight).scale_channels == 64


def test_rows_of_a_wider_matrix_are_read_and_written_in_place() -> None:
    weight = random_int8(37, 64)
    x = random_rows(4, 200)[:, 100:164]
    out = torch.full((4, 100), 7.0)
    quantized_matmul(x, pack(weight), out[:, 50:87])
    assert_product(out[:, 50:87], x, weight)
    assert (out[:, :50] == 7).all()
    assert (out[:, 87:] == 7).all()


@pytest.mark.usefixtures("ordered_products")
@pytest.mark.parametrize("name", ["int4", "int8-half", "fp8-tiles"])
def test_row_has_the_same_bits_in_any_batch_of_fixed_tiles(name: str) -> None:
    weight = WEIGHTS[name]()
    x = random_rows(70, weight.in_features)
    together = multiply(x, weight, num_rows_as=INVARIANT_ROWS)
    for rows in (slice(0, 1), slice(60, 70)):
        assert torch.equal(multiply(x[rows], weight, num_rows_as=INVARIANT_ROWS), together[rows])


def test_fixed_tiles_follow_from_the_weight_alone() -> None:
    for out_features in (100, 8192, 8193, 128256):
        assert pick(QUANTIZED_MATMUL, num_rows=INVARIANT_ROWS, out_features=out_features).constants["BLOCK_M"] == 64


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy's, about the infinity
def test_infinity_and_nan_show_in_their_row_alone() -> None:
    weight = random_int4(33, 96)
    x = random_rows(6, 96)
    expected = multiply(x, weight)
    x[2, 40], x[4, 0] = math.inf, math.nan
    out = multiply(x, weight)
    assert not out[[2, 4]].isfinite().any()
    assert torch.equal(out[[0, 1, 3, 5]], expected[[0, 1, 3, 5]])


def test_fp8_tiles_of_another_width_than_kernels_look_for_are_refused() -> None:
    with pytest.raises(ValueError, match="tiles of 64 columns: kernels take 128, or all 140 of a row"):
        pack_fp8(random_fp8(37, 140, 64, 64))


def test_nan_of_an_fp8_weight_shows_in_its_channel_alone() -> None:
    weight = random_fp8(37, 140, 128, 128)
    x = random_rows(3, 140)
    expected = multiply(x, weight)
    codes = weight.codes.view(torch.uint8).clone()
    codes[5, 130], codes[9, 0] = 0x7F, 0xFF
    out = multiply(x, replace(weight, codes=codes.view(torch.float8_e4m3fn)))
    broken = torch.zeros(37, dtype=torch.bool)
    broken[[5, 9]] = True
    assert out[:, broken].isnan().all()
    assert torch.equal(out[:, ~broken], expected[:, ~broken])


def test_no_rows_are_no_work() -> None:
    assert multiply(torch.empty(0, 96), random_int4(8, 96)).shape == (0, 8)


def one_code_off(weight: Quantized) -> Quantized:
    codes = weight.codes.view(torch.uint8).clone()
    codes[3, 5] ^= 0x40 if isinstance(weight, Fp8Weight) else 1  # 0x40: a factor of 256
    return replace(weight, codes=codes.view(weight.codes.dtype))


def minima_of_next_group(weight: Quantized) -> Quantized:
    return replace(weight, minimum=weight.minimum.roll(1, dims=1))


def scales_of_next_group(weight: Quantized) -> Quantized:
    return replace(weight, scale=weight.scale.roll(1, dims=1))


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("int4", one_code_off),
        ("int4-128", one_code_off),
        ("int8", one_code_off),
        ("fp8-tiles", one_code_off),
        ("int4", minima_of_next_group),
        ("int4-128", minima_of_next_group),
        ("int8-half-minimum", minima_of_next_group),
        ("int8-half", scales_of_next_group),
        ("fp8-tiles", scales_of_next_group),
    ],
)
def test_tolerance_notices_a_planted_error_of_the_weight(name: str, plant) -> None:
    weight = WEIGHTS[name]()
    x = random_rows(3, weight.in_features)
    with pytest.raises(AssertionError, match="of what is added"):
        assert_product(multiply(x, plant(weight)), x, weight, 5 * TOLERANCES[x.dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_tolerance_notices_planted_errors_of_the_product(dtype: torch.dtype) -> None:
    weight = WEIGHTS["int4"]()
    x = random_rows(3, weight.in_features, dtype)
    compare = functools.partial(assert_product, x=x, weight=weight)
    out = multiply(x, weight)
    assert_notices(compare, out)
    if dtype == torch.float32:
        assert_notices(compare, out, planted=PRECISION_ERRORS)
