from __future__ import annotations

import math

import pytest
import torch

from pagewire.gpu_executor.kernels.layouts import LinearWeight, StackedWeight
from pagewire.gpu_executor.kernels.reference import activation_quantization as quantized
from pagewire.gpu_executor.kernels.reference import linear as plain
from pagewire.gpu_executor.kernels.reference.activation_quantization import dequantize_rows, quantize_rows
from tests.support.weights import random_dense, random_int4, random_int8


def test_each_group_is_scaled_by_its_own_largest_magnitude() -> None:
    x = torch.zeros(1, 70)
    x[0, :3] = torch.tensor([-254.0, 3.0, 5.0])  # steps of 2: 1.5 and 2.5 are rounded to even
    x[0, 40], x[0, 69] = 127.0, 0.5
    rows = quantize_rows(x)
    assert rows.scales[0].tolist() == [2.0, 1.0, torch.tensor(0.5).div(127).item()]
    assert rows.values[0, :3].tolist() == [-127, 2, 2]
    assert rows.values[0, [40, 69]].tolist() == [127, 127]
    assert rows.values.abs().sum() == 127 + 4 + 127 + 127


def test_rounding_error_is_at_most_half_a_step() -> None:
    x = torch.randn(50, 96, generator=torch.Generator().manual_seed(0))
    rows = quantize_rows(x)
    step = rows.scales.double().repeat_interleave(32, dim=1)
    assert ((dequantize_rows(rows, 96) - x).abs() <= 0.5001 * step).all()


@pytest.mark.parametrize(("odd", "scale"), [(0.0, 0.0), (1e-38, 0.0), (math.inf, math.nan), (math.nan, math.nan)])
def test_groups_that_have_no_scale(odd: float, scale: float) -> None:
    x = torch.zeros(1, 64)
    x[0, 5], x[0, 32] = odd, 1.0
    rows = quantize_rows(x)
    assert rows.values[0, :32].tolist() == [0] * 32
    assert rows.scales[0, 0].item() == scale or (math.isnan(scale) and rows.scales[0, 0].isnan())
    assert rows.values[0, 32] == 127


@pytest.mark.parametrize(
    "weight",
    [
        random_int4(33, 96, has_bias=True),
        random_int4(33, 72),
        random_int8(33, 96, 16, has_minimum=True),
        StackedWeight((random_int4(20, 96), random_int8(13, 96, has_bias=True))),
    ],
    ids=lambda weight: type(weight).__name__,
)
def test_product_is_that_of_the_rounded_activations(weight: LinearWeight) -> None:
    x = torch.randn(11, weight.in_features, generator=torch.Generator().manual_seed(1))
    result = quantized.linear(x, weight)
    expected = plain.linear(dequantize_rows(quantize_rows(x), weight.in_features).float(), weight)
    torch.testing.assert_close(result.float(), expected, rtol=1e-5, atol=2e-3)
    unrounded = plain.linear(x, weight)
    loss = (result - unrounded).norm() / unrounded.norm()
    assert 1e-3 < loss < 1e-2


def test_dense_weights_meet_activations_as_they_are() -> None:
    weight = random_dense(9, 40, has_bias=True)
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(quantized.linear(x, weight).float(), plain.linear(x, weight))
