"""Norms, rotation and gating give the reference's numbers, at sizes that fill no tile and from views of fused rows."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.layouts import RotaryTable
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from tests.support.planted import PRECISION_ERRORS, assert_notices

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton.rms_norm import add_rms_norm, rms_norm
from pagewire.gpu_executor.kernels.triton.rotary import rotary
from pagewire.gpu_executor.kernels.triton.silu_and_mul import silu_and_mul

pytestmark = pytest.mark.usefixtures("poisoned_memory")

# A few units in the last place; the interpreter cuts bfloat16 off where a device rounds it, twice in a row in a sum.
TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 2e-2}
DTYPES = list(TOLERANCES)
SIZES = [1, 7, 64, 256, 257, 576, 2049, 9000]

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(expected: Tensor, actual: Tensor) -> None:
    tolerance = TOLERANCES[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@each_dtype
@pytest.mark.parametrize("size", SIZES)
def test_norms_give_the_reference(size: int, dtype: torch.dtype) -> None:
    x, residual, weight = normal(5, size, dtype=dtype), normal(5, size, dtype=dtype, seed=1), normal(size, seed=2)
    assert_close(ReferenceOps().rms_norm(x, weight, 1e-5), rms_norm(x, weight, 1e-5))
    expected_normed, expected_total = ReferenceOps().add_rms_norm(x, residual, weight, 1e-5)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert_close(expected_total, total)
    assert_close(expected_normed, normed)


@each_dtype
def test_heads_are_normed_where_they_lie_in_a_fused_row(dtype: torch.dtype) -> None:
    rows, weight = normal(3, (5 + 2) * 80, dtype=dtype), normal(80, dtype=dtype, seed=1)
    heads = rows[:, 2 * 80 :].view(3, 5, 80)
    assert not heads.is_contiguous()
    assert_close(ReferenceOps().rms_norm(heads, weight, 1e-6), rms_norm(heads, weight, 1e-6))


def test_norm_of_zeros_is_zero_and_of_no_rows_nothing() -> None:
    assert torch.equal(rms_norm(torch.zeros(2, 33), torch.ones(33), 1e-5), torch.zeros(2, 33))
    assert rms_norm(torch.zeros(0, 33), torch.ones(33), 1e-5).shape == (0, 33)


def test_norm_of_large_numbers_stays_finite() -> None:
    """Squares of float16's largest numbers leave float16."""
    x = torch.full((1, 64), 6e4, dtype=torch.float16)
    assert_close(torch.ones(1, 64, dtype=torch.float16), rms_norm(x, torch.ones(64), 1e-5))


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


def rotation(head_dim: int, rotary_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, RotaryTable]:
    """Query and key as views of a fused row, positions and a table."""
    angles = 100 * normal(50, rotary_dim // 2)
    fused = normal(7, (9 + 2 + 2) * head_dim, dtype=dtype)
    query, key, _ = (part.view(7, -1, head_dim) for part in fused.split([n * head_dim for n in (9, 2, 2)], dim=1))
    return query, key, torch.tensor([0, 49, 3, 3, 17, 20, 1]), RotaryTable(angles.cos(), angles.sin())


@each_dtype
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (24, 24), (80, 32), (6, 6), (40, 14)])
def test_rotation_gives_the_reference(head_dim: int, rotary_dim: int, dtype: torch.dtype) -> None:
    arguments = rotation(head_dim, rotary_dim, dtype)
    for expected, actual in zip(ReferenceOps().rotary(*arguments), rotary(*arguments), strict=True):
        assert actual.is_contiguous()
        assert_close(expected, actual)


def test_rows_have_the_same_bits_alone_and_together() -> None:
    x, weight, gate_up = normal(19, 577), normal(577, seed=1), 5 * normal(19, 2 * 97)
    normed, gated = rms_norm(x, weight, 1e-5), silu_and_mul(gate_up)
    for row in (0, 7, 18):
        assert torch.equal(rms_norm(x[row : row + 1], weight, 1e-5)[0], normed[row])
        assert torch.equal(silu_and_mul(gate_up[row : row + 1])[0], gated[row])


@each_dtype
def test_tolerance_notices_planted_errors(dtype: torch.dtype) -> None:
    x, weight = normal(5, 576, dtype=dtype), normal(576, seed=1)
    compare = functools.partial(assert_close, ReferenceOps().rms_norm(x, weight, 1e-5))
    assert_notices(compare, rms_norm(x, weight, 1e-5))
    if dtype != torch.bfloat16:
        assert_notices(compare, rms_norm(x, weight, 1e-5), planted=PRECISION_ERRORS)
    gate_up = normal(4, 200, dtype=dtype)
    assert_notices(functools.partial(assert_close, ReferenceOps().silu_and_mul(gate_up)), silu_and_mul(gate_up))
    arguments = rotation(64, 64, dtype)
    for expected, actual in zip(ReferenceOps().rotary(*arguments), rotary(*arguments), strict=True):
        assert_notices(functools.partial(assert_close, expected), actual)
