"""Native products: those of the simulated integer arithmetic to the last bits, and a row's bits its own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.cpu.engine import NativeEngine
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing
from pagewire.gpu_executor.kernels.cpu.packed_weight import PackedWeight, pack_weight
from pagewire.gpu_executor.kernels.layouts import Int4Weight, Int8Weight, LinearWeight, StackedWeight
from pagewire.gpu_executor.kernels.reference import activation_quantization as simulated
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize
from tests.support.weights import permuted, random_dense, random_int4, random_int8

# Relative to the sum of the magnitudes of all products of an output: float32 rounds each step by at most 6e-8 of it.
# One code that is wrong by 1 in 576 channels is worth some 2e-4.
TOLERANCE = 1e-6

WEIGHTS = {
    "int4": lambda out, size, **more: random_int4(out, size, **more),
    "int8": lambda out, size, **more: random_int8(out, size, **more),
    "int8-minimum": lambda out, size, **more: random_int8(out, size, has_minimum=True, **more),
    "int8-half": lambda out, size, **more: random_int8(out, size, 16, **more),
    "int8-half-minimum": lambda out, size, **more: random_int8(out, size, 16, has_minimum=True, **more),
    "int4-permuted": lambda out, size, **more: permuted(random_int4(out, size, **more)),
    "int8-permuted": lambda out, size, **more: permuted(random_int8(out, size, has_minimum=True, **more)),
}
# Output channels that end within a vector and within a panel; input channels of one block of groups and of several.
SHAPES = [(1, 32), (15, 64), (16, 576), (17, 1536), (40, 800), (960, 576), (33, 4096)]
# Rows of one tile, of several even and uneven ones, and of several blocks of rows.
ROWS = [1, 2, 3, 4, 5, 7, 8, 13, 16, 33, 64, 65, 70, 130]


def make_engine(instruction_set: str, num_threads: int = 2) -> NativeEngine:
    try:
        return NativeEngine(num_threads, instruction_set)
    except LibraryMissing as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module", params=["portable", "auto"])
def engine(request: pytest.FixtureRequest) -> NativeEngine:
    return make_engine(request.param)


def multiply(engine: NativeEngine, x: Tensor, weight: PackedWeight) -> Tensor:
    out = torch.full((len(x), weight.out_features), torch.nan)
    engine.call("pagewire_linear", weight.view, x.data_ptr(), len(x), out.data_ptr())
    return out


def random_rows(num_rows: int, size: int, seed: int = 0) -> Tensor:
    """Normal numbers with outliers, as a model's activations have them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, size, generator=generator)
    return torch.where(torch.rand(num_rows, size, generator=generator) < 0.01, 30 * x, x)


def error(out: Tensor, x: Tensor, weight: LinearWeight) -> float:
    """Return the largest distance from the simulation, relative to the sum of the magnitudes that go into an output."""
    rows = simulated.dequantize_rows(simulated.quantize_rows(x), weight.in_features)
    magnitudes = rows.abs() @ dequantize(weight, torch.float64).abs().t()
    return float(((out - simulated.linear(x, weight)).abs() / magnitudes).max())


@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
@pytest.mark.parametrize("layout", WEIGHTS)
def test_product_is_the_simulated_one(engine, layout, out_features, in_features):
    weight = WEIGHTS[layout](out_features, in_features, has_bias=True, seed=out_features)
    packed = pack_weight(engine, weight)
    for num_rows in (1, 3, 6, 21):
        x = random_rows(num_rows, in_features, seed=num_rows)
        assert error(multiply(engine, x, packed), x, weight) < TOLERANCE


@pytest.mark.parametrize("in_features", [5, 17, 70, 575])
def test_channels_that_pad_the_last_group_add_nothing(engine, in_features):
    plain = random_int4(20, in_features, seed=in_features)
    x = random_rows(9, in_features)
    for weight in (plain, permuted(plain)):
        assert error(multiply(engine, x, pack_weight(engine, weight)), x, weight) < TOLERANCE


@pytest.mark.parametrize("group_size", [32, 16])
def test_least_code_is_multiplied_exactly(engine, group_size):
    """-128, whose magnitude needs the eighth bit, times what is rounded to -127 and 127, in every way to add them up:
    whole rows of one sign have the largest sums that there are.
    """
    weight = random_int8(16, 96, group_size)
    weight.codes[::2] = -128
    weight.codes[1] = 127
    weight.codes[3] = torch.tensor([-128, 127], dtype=torch.int8).repeat(48)
    x = random_rows(20, 96).sign()  # rounded without loss
    x[0], x[1] = 1.0, -1.0
    x[2] = torch.tensor([1.0, -1.0]).repeat(48)
    for rows in (x, x[:1], x[1:2], x[2:3]):
        assert error(multiply(engine, rows, pack_weight(engine, weight)), rows, weight) < TOLERANCE


def test_parts_that_share_a_permutation_are_multiplied_in_it(engine):
    weight = StackedWeight((permuted(random_int4(40, 96)), random_dense(8, 96), permuted(random_int8(24, 96, 16))))
    x = random_rows(5, 96)
    out = multiply(engine, x, pack_weight(engine, weight))
    assert error(out, x, weight) < TOLERANCE


@pytest.mark.parametrize("layout", WEIGHTS)
def test_row_has_the_same_bits_in_any_batch(engine, layout):
    for out_features, in_features in ((100, 576), (48, 1536)):
        packed = pack_weight(engine, WEIGHTS[layout](out_features, in_features, has_bias=True))
        x = random_rows(max(ROWS), in_features)
        alone = torch.cat([multiply(engine, x[i : i + 1], packed) for i in range(len(x))])
        for num_rows in ROWS:
            assert torch.equal(multiply(engine, x[-num_rows:], packed), alone[-num_rows:])


@pytest.mark.parametrize("layout", WEIGHTS)
def test_row_has_the_same_bits_on_any_number_of_threads(layout):
    """More threads cut a matrix into other tiles, and a single row into pieces."""
    weight, wide = WEIGHTS[layout](700, 96), WEIGHTS[layout](20, 1632)
    x, x_wide = random_rows(70, 96), random_rows(1, 1632)
    results = []
    for num_threads in (1, 2, 3, 5):
        engine = make_engine("auto", num_threads)
        products = (
            multiply(engine, x, pack_weight(engine, weight)),
            multiply(engine, x_wide, pack_weight(engine, wide)),
        )
        results.append(torch.cat([part.flatten() for part in products]))
    assert all(torch.equal(result, results[0]) for result in results)


def test_stacked_parts_are_multiplied_side_by_side(engine):
    weight = StackedWeight((random_int4(40, 96), random_int8(24, 96, 16), random_dense(8, 96)))
    x = random_rows(5, 96)
    out = multiply(engine, x, pack_weight(engine, weight))
    for part, columns in zip(weight.parts, out.split([40, 24, 8], dim=1), strict=True):
        assert torch.equal(columns, multiply(engine, x, pack_weight(engine, part)))


def test_infinity_and_nan_show_in_their_row_alone(engine):
    packed = pack_weight(engine, random_int4(33, 96))
    x = random_rows(6, 96)
    expected = multiply(engine, x, packed)
    x[2, 40], x[4, 0] = math.inf, math.nan
    out = multiply(engine, x, packed)
    broken = torch.tensor([2, 4])
    assert out[broken].isnan().all()
    kept = torch.tensor([0, 1, 3, 5])
    assert torch.equal(out[kept], expected[kept])


def test_rows_of_zeros_give_the_bias(engine):
    weight = random_int4(20, 64, has_bias=True)
    out = multiply(engine, torch.zeros(3, 64), pack_weight(engine, weight))
    assert torch.equal(out, weight.bias.expand(3, -1))


@pytest.mark.parametrize("layout", WEIGHTS)
def test_rounding_of_activations_costs_under_one_percent(engine, layout):
    """The error that stays when weights are taken as they are: what 8 bits for a group of activations cost."""
    weight = WEIGHTS[layout](200, 576)
    x = torch.randn(16, 576, generator=torch.Generator().manual_seed(1))
    exact = x.double() @ dequantize(weight, torch.float64).t()
    out = multiply(engine, x, pack_weight(engine, weight))
    assert 0.001 < float((out - exact).norm() / exact.norm()) < 0.01


def one_code_off(weight: Int4Weight | Int8Weight) -> Int4Weight | Int8Weight:
    codes = weight.codes.clone()
    codes[3, 5] += 1 if codes[3, 5] % 16 < 15 else -1
    return replace(weight, codes=codes)


def minima_of_next_group(weight: Int4Weight | Int8Weight) -> Int4Weight | Int8Weight:
    return replace(weight, minimum=weight.minimum.roll(1, dims=1))


def channels_in_order(weight: Int4Weight | Int8Weight) -> Int4Weight | Int8Weight:
    return replace(weight, permutation=None)


def halves_swapped(weight: Int4Weight | Int8Weight) -> Int4Weight | Int8Weight:
    return replace(weight, scale=weight.scale.view(-1, 2).flip(1).reshape(weight.scale.shape))


@pytest.mark.parametrize(
    ("layout", "plant"),
    [
        ("int4", one_code_off),
        ("int8", one_code_off),
        ("int4", minima_of_next_group),
        ("int8-half-minimum", minima_of_next_group),
        ("int8-half", halves_swapped),
        ("int4-permuted", channels_in_order),
    ],
)
def test_tolerance_notices_a_planted_error(engine, layout, plant):
    weight = WEIGHTS[layout](16, 576)
    x = random_rows(6, 576)
    assert error(multiply(engine, x, pack_weight(engine, plant(weight))), x, weight) > 5 * TOLERANCE
