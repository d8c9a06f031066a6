"""Gating gives the reference's numbers, at sizes that fill no tile, and meets its limits."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.reference import activation as reference
from tests.support.elementwise import assert_close, each_dtype, normal
from tests.support.planted import PRECISION_ERRORS, assert_notices

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton import activation

pytestmark = [
    pytest.mark.usefixtures("poisoned_memory"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),  # exp of 100 and more, by numpy
]

Gating = Callable[[Tensor], Tensor]
each_activation = pytest.mark.parametrize("name", ["silu_and_mul", "gelu_tanh_and_mul"])


def gating(name: str) -> tuple[Gating, Gating]:
    """Return the kernel's gating and the reference's."""
    return getattr(activation, name), getattr(reference, name)


@each_activation
@each_dtype
@pytest.mark.parametrize("size", [1, 7, 1024, 1500])
def test_gating_gives_the_reference(size: int, dtype: torch.dtype, name: str) -> None:
    gate, expected = gating(name)
    gate_up = torch.cat([20 * normal(4, size), normal(4, size, seed=1)], dim=1).to(dtype)
    assert_close(expected(gate_up), gate(gate_up))


@each_activation
def test_gating_meets_its_limits(name: str) -> None:
    gate, _ = gating(name)
    values = torch.tensor([[0.0, 80.0, -80.0, 100.0, -100.0, 3e38, -3e38, math.inf, math.nan]])
    out = gate(torch.cat([values, torch.ones_like(values)], dim=1))[0]
    assert out[:2].tolist() == [0.0, 80.0]
    assert -1e-30 < out[2] <= 0
    assert out[3:8].tolist() == [100.0, 0.0, values[0, 5].item(), 0.0, math.inf]
    assert out[8].isnan()


def test_gelu_is_the_one_with_a_hyperbolic_tangent() -> None:
    """The one with an error function differs by up to 5e-4."""
    gate = torch.linspace(-5, 5, 401).unsqueeze(0)
    out = activation.gelu_tanh_and_mul(torch.cat([gate, torch.ones_like(gate)], dim=1))
    expected = torch.nn.functional.gelu(gate.double(), approximate="tanh")
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)


@each_activation
def test_no_rows_are_no_work(name: str) -> None:
    assert gating(name)[0](torch.empty(0, 64)).shape == (0, 32)


@each_activation
@each_dtype
def test_tolerance_notices_planted_errors(dtype: torch.dtype, name: str) -> None:
    gate, expected = gating(name)
    gate_up = normal(4, 200, dtype=dtype)
    compare = functools.partial(assert_close, expected(gate_up))
    assert_notices(compare, gate(gate_up))
    if dtype != torch.bfloat16:
        assert_notices(compare, gate(gate_up), planted=PRECISION_ERRORS)
