from __future__ import annotations

import pytest
import torch

from pagewire.gpu_executor.kernels.layouts import DenseWeight, StackedWeight
from pagewire.gpu_executor.kernels.reference.dequantize import bias_of, dequantize
from pagewire.gpu_executor.kernels.reference.linear import embedding, linear
from tests.support.weights import random_int4, random_int8

SHAPES = [(64, 97), (123, 77), (20, 7), (1, 1), (576, 960), (1536, 576)]


@pytest.mark.parametrize(("in_features", "out_features"), SHAPES)
def test_row_has_the_same_bits_alone_and_in_any_batch(in_features: int, out_features: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = DenseWeight(
        torch.randn(out_features, in_features, generator=generator), torch.randn(out_features, generator=generator)
    )
    x = torch.randn(37, in_features, generator=generator)
    together = linear(x, weight)
    for start, stop in ((0, 1), (5, 7), (16, 32), (3, 37), (36, 37)):
        assert torch.equal(linear(x[start:stop], weight), together[start:stop])
    order = torch.randperm(37, generator=generator)
    assert torch.equal(linear(x[order], weight), together[order])


def test_grouped_and_stacked_weights_are_multiplied_as_the_matrix_that_they_stand_for() -> None:
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(3))
    parts = (random_int4(20, 96, has_bias=True), random_int8(9, 96, 16), random_int8(7, 96, has_minimum=True))
    for weight in (*parts, StackedWeight(parts)):
        dense = DenseWeight(dequantize(weight), bias_of(weight))
        assert torch.equal(linear(x, weight), linear(x, dense))


def test_nan_in_one_row_stays_there() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = DenseWeight(torch.randn(48, 96, generator=generator))
    x = torch.randn(5, 96, generator=generator)
    clean = linear(x, weight)
    x[2] = torch.nan
    poisoned = linear(x, weight)
    assert torch.equal(poisoned[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])
    assert poisoned[2].isnan().all()


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)]
)
def test_product_is_accumulated_in_float32_and_rounded_once(dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = DenseWeight(
        torch.randn(131, 257, generator=generator).to(dtype), torch.randn(131, generator=generator).to(dtype)
    )
    x = torch.randn(19, 257, generator=generator).to(dtype)
    assert weight.bias is not None
    expected = x.double() @ weight.weight.double().t() + weight.bias.double()
    result = linear(x, weight)
    assert result.dtype == dtype
    assert ((result.double() - expected).abs() <= tolerance * expected.abs() + 3e-5).all()


def test_embedding_looks_up_rows() -> None:
    weight = DenseWeight(torch.arange(12.0).view(4, 3))
    rows = embedding(torch.tensor([3, 0, 3]), weight, torch.bfloat16)
    assert rows.dtype == torch.bfloat16
    assert rows.tolist() == [[9, 10, 11], [0, 1, 2], [9, 10, 11]]
