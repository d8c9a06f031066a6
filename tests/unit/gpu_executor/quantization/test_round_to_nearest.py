"""Rounding: how far a number may be off, and what can't be rounded."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from pagewire.gpu_executor.kernels.layouts import GROUP_SIZE
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize
from pagewire.gpu_executor.quantization.round_to_nearest import round_to_fp8, round_to_int8, round_to_integers

MAX_FP8 = 448.0
TINY = 2.0**-24  # the smallest float16


def matrix(seed: int, exponent: int, *, rows: int = 5, columns: int = 96) -> torch.Tensor:
    """Normal numbers of some size, with a row of zeros, a lone outlier and a row of one sign."""
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    values[1] = 0.0
    values[2, 7] *= 100.0
    values[3] = values[3].abs()
    return values


def group_steps(values: torch.Tensor, group_size: int, num_steps: float) -> torch.Tensor:
    """Return each number's share of its group's largest magnitude, or float16's smallest number if that is more.

    A scale is rounded up to float16, by 1 part in 1024 at most while it is not among its smallest numbers.
    """
    most = values.view(len(values), -1, group_size).abs().amax(dim=2, keepdim=True)
    steps = (most / num_steps * (1 + 2**-10) + TINY).expand(-1, -1, group_size)
    return steps.reshape(values.shape)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), exponent=st.integers(-30, 15))
def test_int8_is_off_by_half_a_step_of_its_group_at_most(seed: int, exponent: int) -> None:
    values = matrix(seed, exponent)
    weight = round_to_int8(values)
    assert weight.group_size == GROUP_SIZE
    assert weight.minimum is None
    assert weight.codes.min() >= -127
    error = (dequantize(weight, torch.float64) - values).abs()
    assert (error <= 0.501 * group_steps(values, GROUP_SIZE, 127)).all()
    assert torch.equal(dequantize(weight)[1], values[1])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), exponent=st.integers(-60, 60))
def test_fp8_is_off_by_a_sixteenth_of_a_number_or_half_the_smallest_step_of_its_row(seed: int, exponent: int) -> None:
    values = matrix(seed, exponent)
    weight = round_to_fp8(values)
    assert (weight.tile_rows, weight.tile_columns, weight.scale.dtype) == (1, 96, torch.float32)
    error = (dequantize(weight, torch.float64) - values).abs()
    smallest = values.abs().amax(dim=1, keepdim=True) / MAX_FP8 * 2.0**-10
    assert (error <= 1.001 * torch.maximum(values.abs() / 16, smallest)).all()
    assert torch.equal(dequantize(weight)[1], values[1])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 48, None])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), exponent=st.integers(-10, 10))
def test_integers_are_off_by_half_a_step_of_their_group_at_most(
    bits: int, group_size: int | None, seed: int, exponent: int
) -> None:
    values = matrix(seed, exponent)
    for is_symmetric in (True, False):
        rounded = round_to_integers(values, bits=bits, group_size=group_size, is_symmetric=is_symmetric)
        assert int(rounded.codes.max()) < 2**bits
        assert not is_symmetric or (rounded.zero == 2 ** (bits - 1)).all()
        assert torch.equal(rounded.scale, rounded.scale.half().float())
        # Symmetric: codes reach half a step less than the largest magnitude. Asymmetric: they span both signs' largest,
        # and half a step is lost where the zero point is rounded.
        steps = group_steps(values, group_size or 96, (2**bits - 1) / 2)
        assert ((rounded.dequantize() - values).abs() <= 0.502 * (1 if is_symmetric else 2) * steps).all()
        assert torch.equal(rounded.dequantize()[1], values[1])


def test_one_sign_has_twice_as_many_steps_without_symmetry() -> None:
    values = matrix(0, 0)[3:4].abs() + 0.1
    errors = [
        float((round_to_integers(values, bits=4, group_size=32, is_symmetric=kind).dequantize() - values).norm())
        for kind in (True, False)
    ]
    assert errors[1] < 0.7 * errors[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scales_are_those_of_the_type_that_they_are_stored_in(dtype: torch.dtype) -> None:
    rounded = round_to_integers(matrix(0, 0), bits=4, group_size=32, is_symmetric=True, scale_dtype=dtype)
    assert torch.equal(rounded.scale, rounded.scale.to(dtype).float())


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_what_is_no_number_can_not_be_rounded(number: float) -> None:
    values = matrix(0, 0)
    values[4, 3] = number
    with pytest.raises(ValueError, match="a NaN, an infinity, or numbers too large"):
        round_to_int8(values)
    with pytest.raises(ValueError, match="a NaN, an infinity"):
        round_to_fp8(values)
    with pytest.raises(ValueError, match="a NaN, an infinity"):
        round_to_integers(values, bits=4, group_size=32, is_symmetric=False)


def test_groups_must_divide_rows_and_scales_must_be_float16() -> None:
    with pytest.raises(ValueError, match=r"80 input channels can't be cut into groups of 32"):
        round_to_int8(torch.ones(2, 80))
    with pytest.raises(ValueError, match=r"too large for a scale in torch\.float16"):
        round_to_int8(torch.full((1, 32), 1e7))
