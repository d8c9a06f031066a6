"""Gating gives the reference's numbers, at sizes that fill no tile, and meets its limits."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from tests.support.elementwise import assert_close, each_dtype, normal
from tests.support.planted import PRECISION_ERRORS, assert_notices

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton.silu_and_mul import silu_and_mul

pytestmark = pytest.mark.usefixtures("poisoned_memory")


@each_dtype
@pytest.mark.parametrize("size", [1, 7, 1024, 1500])
def test_gating_gives_the_reference(size: int, dtype: torch.dtype) -> None:
    gate_up = torch.cat([20 * normal(4, size), normal(4, size, seed=1)], dim=1).to(dtype)
    assert_close(ReferenceOps().silu_and_mul(gate_up), silu_and_mul(gate_up))


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # exp of 100 and more, by numpy
def test_gating_meets_its_limits() -> None:
    gate = torch.tensor([[0.0, 80.0, -80.0, 100.0, -100.0, 3e38, -3e38, math.inf, math.nan]])
    out = silu_and_mul(torch.cat([gate, torch.ones_like(gate)], dim=1))[0]
    assert out[:2].tolist() == [0.0, 80.0]
    assert -1e-30 < out[2] < 0
    assert out[3:8].tolist() == [100.0, 0.0, gate[0, 5].item(), 0.0, math.inf]
    assert out[8].isnan()


def test_no_rows_are_no_work() -> None:
    assert silu_and_mul(torch.empty(0, 64)).shape == (0, 32)


@each_dtype
def test_tolerance_notices_planted_errors(dtype: torch.dtype) -> None:
    gate_up = normal(4, 200, dtype=dtype)
    compare = functools.partial(assert_close, ReferenceOps().silu_and_mul(gate_up))
    assert_notices(compare, silu_and_mul(gate_up))
    if dtype != torch.bfloat16:
        assert_notices(compare, silu_and_mul(gate_up), planted=PRECISION_ERRORS)
