"""Rounding: how far a number may be off, and what can't be rounded."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from pagewire.gpu_executor.kernels.layouts import GROUP_SIZE, Fp8Weight, Int8Weight
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize
from pagewire.gpu_executor.quantization import round_to_nearest
from pagewire.gpu_executor.quantization.round_to_nearest import round_to_fp8, round_to_int8
from pagewire.gpu_executor.quantization.row_chunks import row_chunks

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


@pytest.mark.parametrize("round_matrix", [round_to_int8, round_to_fp8])
def test_chunks_of_rows_give_what_the_whole_gives(
    round_matrix: Callable[[torch.Tensor], Int8Weight | Fp8Weight], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = matrix(4, 0, rows=17)
    whole = round_matrix(values)
    monkeypatch.setattr(round_to_nearest, "row_chunks", lambda rows: row_chunks(rows, 3 * 96))
    chunked = round_matrix(values)
    assert torch.equal(whole.codes.view(torch.uint8), chunked.codes.view(torch.uint8))
    assert torch.equal(whole.scale, chunked.scale)


@pytest.mark.parametrize("round_matrix", [round_to_int8, round_to_fp8])
def test_no_rows_are_rounded_to_none(round_matrix: Callable[[torch.Tensor], Int8Weight | Fp8Weight]) -> None:
    assert round_matrix(torch.empty(0, 64)).codes.shape == (0, 64)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_what_is_no_number_can_not_be_rounded(number: float) -> None:
    values = matrix(0, 0)
    values[4, 3] = number
    with pytest.raises(ValueError, match="a NaN, an infinity, or numbers too large"):
        round_to_int8(values)
    with pytest.raises(ValueError, match="a NaN, an infinity"):
        round_to_fp8(values)


def test_groups_must_divide_rows_and_scales_must_be_float16() -> None:
    with pytest.raises(ValueError, match=r"80 input channels can't be cut into groups of 32"):
        round_to_int8(torch.ones(2, 80))
    with pytest.raises(ValueError, match=r"too large for a scale in torch\.float16"):
        round_to_int8(torch.full((1, 32), 1e7))
