"""Norms give the reference's numbers, at sizes that fill no tile and where heads lie in fused rows."""

from __future__ import annotations

import functools

import pytest
import torch

from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from tests.support.elementwise import assert_close, each_dtype, normal
from tests.support.planted import PRECISION_ERRORS, assert_notices

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton.rms_norm import add_rms_norm, rms_norm

pytestmark = pytest.mark.usefixtures("poisoned_memory")


@each_dtype
@pytest.mark.parametrize("size", [1, 7, 64, 256, 257, 576, 2049, 9000])
def test_norms_give_the_reference(size: int, dtype: torch.dtype) -> None:
    x, residual, weight = normal(5, size, dtype=dtype), normal(5, size, dtype=dtype, seed=1), normal(size, seed=2)
    assert_close(ReferenceOps().rms_norm(x, weight, 1e-5), rms_norm(x, weight, 1e-5))
    expected_normed, expected_total = ReferenceOps().add_rms_norm(x, residual, weight, 1e-5)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert_close(expected_total, total)
    assert_close(expected_normed, normed)


@each_dtype
def test_the_sum_is_normed_as_it_is_handed_on(dtype: torch.dtype) -> None:
    x, residual, weight = normal(5, 300, dtype=dtype), 50 * normal(5, 300, dtype=dtype, seed=1), normal(300, seed=2)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(normed, rms_norm(total, weight, 1e-5))


def test_epsilon_counts_where_numbers_are_small() -> None:
    x, weight = 1e-3 * normal(2, 64), normal(64, seed=1)
    assert_close(ReferenceOps().rms_norm(x, weight, 1e-5), rms_norm(x, weight, 1e-5))


@each_dtype
def test_heads_are_normed_where_they_lie_in_a_fused_row(dtype: torch.dtype) -> None:
    rows, weight = normal(3, (5 + 2) * 80, dtype=dtype), normal(80, dtype=dtype, seed=1)
    heads = rows[:, 2 * 80 :].view(3, 5, 80)
    assert not heads.is_contiguous()
    assert_close(ReferenceOps().rms_norm(heads, weight, 1e-6), rms_norm(heads, weight, 1e-6))


def test_channels_that_lie_apart_are_copied_first() -> None:
    x, weight = normal(8, 40).t(), normal(8, seed=1)
    assert_close(ReferenceOps().rms_norm(x, weight, 1e-6), rms_norm(x, weight, 1e-6))


def test_norm_of_zeros_is_zero_and_of_no_rows_nothing() -> None:
    assert torch.equal(rms_norm(torch.zeros(2, 33), torch.ones(33), 1e-5), torch.zeros(2, 33))
    assert rms_norm(torch.zeros(0, 33), torch.ones(33), 1e-5).shape == (0, 33)


def test_norm_of_large_numbers_stays_finite() -> None:
    """Squares of float16's largest numbers leave float16."""
    x = torch.full((1, 64), 6e4, dtype=torch.float16)
    assert_close(torch.ones(1, 64, dtype=torch.float16), rms_norm(x, torch.ones(64), 1e-5))


def test_rows_have_the_same_bits_alone_and_together() -> None:
    for size in (100, 577):
        x, weight = normal(19, size), normal(size, seed=1)
        normed = rms_norm(x, weight, 1e-5)
        for row in (0, 7, 18):
            assert torch.equal(rms_norm(x[row : row + 1], weight, 1e-5)[0], normed[row])


@each_dtype
def test_tolerance_notices_planted_errors(dtype: torch.dtype) -> None:
    x, weight = normal(5, 576, dtype=dtype), normal(576, seed=1)
    compare = functools.partial(assert_close, ReferenceOps().rms_norm(x, weight, 1e-5))
    assert_notices(compare, rms_norm(x, weight, 1e-5))
    if dtype != torch.bfloat16:
        assert_notices(compare, rms_norm(x, weight, 1e-5), planted=PRECISION_ERRORS)
