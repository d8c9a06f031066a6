"""The dense product of fixed tiles: torch's numbers, and a row's bits its own."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.layouts import DenseWeight
from tests.support.planted import assert_notices
from tests.support.products import TOLERANCES, assert_product, random_rows
from tests.support.weights import random_dense

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton.dense_matmul import dense_matmul
from pagewire.gpu_executor.kernels.triton.launches.products import DENSE_MATMUL

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def multiply(x: Tensor, weight: DenseWeight) -> Tensor:
    out = torch.full((x.shape[0], weight.out_features), torch.nan, dtype=x.dtype)
    dense_matmul(x, weight.weight, weight.bias, out)
    return out


@pytest.mark.parametrize(("out_features", "in_features"), [(1, 1), (65, 64), (70, 201)])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_product_is_the_exact_one(out_features: int, in_features: int, dtype: torch.dtype) -> None:
    weight = random_dense(out_features, in_features, dtype, has_bias=True)
    for num_rows in (1, 67):
        x = random_rows(num_rows, in_features, dtype)
        assert_product(multiply(x, weight), x, weight)


@pytest.mark.parametrize("row", range(len(DENSE_MATMUL)))
def test_product_is_right_by_each_launch_row(row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows for matrices that are too large for a test compute small ones as well."""
    monkeypatch.setattr(
        "pagewire.gpu_executor.kernels.triton.dense_matmul.pick", lambda rows, **shape: DENSE_MATMUL[row]
    )
    weight = random_dense(130, 200, has_bias=True)
    x = random_rows(3, 200)
    assert_product(multiply(x, weight), x, weight)


@pytest.mark.usefixtures("ordered_products")
def test_row_has_the_same_bits_in_any_batch() -> None:
    weight = random_dense(70, 201)
    x = random_rows(70, 201)
    together = multiply(x, weight)
    for rows in (slice(0, 1), slice(3, 20), slice(60, 70)):
        assert torch.equal(multiply(x[rows], weight), together[rows])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_tolerance_notices_planted_errors(dtype: torch.dtype) -> None:
    weight = random_dense(40, 200, dtype)
    x = random_rows(3, 200, dtype)
    assert_notices(functools.partial(assert_product, x=x, weight=weight), multiply(x, weight))
