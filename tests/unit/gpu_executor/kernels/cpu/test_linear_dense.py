"""Native products with dense weights: near the exact ones, and a row's bits its own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.cpu.engine import NativeEngine
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing
from pagewire.gpu_executor.kernels.cpu.packed_weight import PackedWeight, pack_weight
from pagewire.gpu_executor.kernels.layouts import DenseWeight
from tests.support.weights import random_dense

# Relative to the sum of the magnitudes of an output's products. A chain of n additions in float32 is off by sqrt(n) of
# 6e-8, if they err at random; 4096 is the longest here.
TOLERANCE = 2e-6
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Output channels that end within a panel, and single ones; input channels that end within a group, and blocks of them.
SHAPES = [(1, 1), (15, 33), (16, 256), (17, 257), (40, 800), (200, 576), (33, 4096)]
# Rows of one tile, of several, of two blocks; from 24 on 16-bit weights are widened first.
ROWS = [1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 23, 24, 25, 64, 97, 200]


@pytest.fixture(scope="module", params=["portable", "auto"])
def engine(request: pytest.FixtureRequest) -> NativeEngine:
    try:
        return NativeEngine(2, request.param)
    except LibraryMissing as exc:
        pytest.skip(str(exc))


def multiply(engine: NativeEngine, x: Tensor, weight: PackedWeight) -> Tensor:
    out = torch.full((len(x), weight.out_features), torch.nan)
    engine.call("pagewire_linear", weight.view, x.data_ptr(), len(x), out.data_ptr())
    return out


def random_rows(num_rows: int, size: int) -> Tensor:
    return torch.randn(num_rows, size, generator=torch.Generator().manual_seed(num_rows))


def error(out: Tensor, x: Tensor, weight: DenseWeight) -> float:
    matrix = weight.weight.double()
    exact = x.double() @ matrix.t()
    magnitudes = x.double().abs() @ matrix.abs().t()
    if weight.bias is not None:
        exact += weight.bias
        magnitudes += weight.bias.abs()
    return float(((out - exact).abs() / magnitudes).max())


@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_product_is_near_the_exact_one(engine, dtype, out_features, in_features):
    weight = random_dense(out_features, in_features, dtype, has_bias=True, seed=out_features)
    packed = pack_weight(engine, weight)
    for num_rows in (1, 5, 30):
        x = random_rows(num_rows, in_features)
        assert error(multiply(engine, x, packed), x, weight) < TOLERANCE


@pytest.mark.parametrize("dtype", DTYPES)
def test_row_has_the_same_bits_in_any_batch(engine, dtype):
    for out_features, in_features in ((130, 576), (17, 300)):
        packed = pack_weight(engine, random_dense(out_features, in_features, dtype, has_bias=True))
        x = random_rows(max(ROWS), in_features)
        alone = torch.cat([multiply(engine, x[i : i + 1], packed) for i in range(len(x))])
        for num_rows in ROWS:
            assert torch.equal(multiply(engine, x[-num_rows:], packed), alone[-num_rows:])


def test_sixteen_bit_weights_give_the_bits_of_their_float32_values(engine):
    """Widening is exact, and the arithmetic is one."""
    for dtype in (torch.float16, torch.bfloat16):
        weight = random_dense(50, 300, dtype)
        wide = DenseWeight(weight.weight.float())
        for num_rows in (1, 6, 20, 40):
            x = random_rows(num_rows, 300)
            assert torch.equal(
                multiply(engine, x, pack_weight(engine, weight)), multiply(engine, x, pack_weight(engine, wide))
            )


def test_nan_shows_in_its_row_and_its_channel_alone(engine):
    weight = random_dense(20, 70)
    weight.weight[3, 69] = math.nan
    x = random_rows(8, 70)
    x[5, 0] = math.inf
    out = multiply(engine, x, pack_weight(engine, weight))
    finite = out.isfinite()
    assert not finite[:, 3].any()
    assert not finite[5].any()
    finite[:, 3] = finite[5] = True
    assert finite.all()


def test_row_of_the_matrix_is_looked_up_as_it_is(engine):
    for dtype in DTYPES:
        weight = random_dense(37, 75, dtype)
        ids = torch.tensor([36, 0, 16, 16])
        out = torch.full((len(ids), 75), torch.nan)
        packed = pack_weight(engine, weight)
        engine.call("pagewire_embedding", packed.view, ids.data_ptr(), len(ids), out.data_ptr())
        assert torch.equal(out, weight.weight[ids].float())


@pytest.mark.parametrize("dtype", DTYPES)
def test_tolerance_notices_one_weight_that_is_lost(engine, dtype):
    weight = random_dense(16, 4096, dtype)
    damaged = weight.weight.clone()
    damaged[3, 4095] = 0
    x = random_rows(6, 4096)
    assert error(multiply(engine, x, pack_weight(engine, replace(weight, weight=damaged))), x, weight) > 5 * TOLERANCE
