"""The harness of planted errors tells a tolerance that is worth its name from one that is not."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from tests.support.planted import PLANTED_ERRORS, PRECISION_ERRORS, Planted, assert_notices

SHAPES = [(2,), (3, 5), (2, 3, 7), (64, 128)]


def result(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def compare(expected: Tensor, actual: Tensor, *, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)])
def test_an_honest_tolerance_passes(shape: tuple[int, ...], dtype: torch.dtype, tolerance: float):
    expected = result(shape, dtype)
    assert_notices(functools.partial(compare, expected, tolerance=tolerance), expected.clone())


@pytest.mark.parametrize("error", [*PLANTED_ERRORS, *PRECISION_ERRORS], ids=lambda error: error.name)
def test_each_error_changes_the_result(error: Planted):
    for shape in SHAPES:
        for expected in (result(shape), torch.zeros(shape)):
            spoilt = expected.clone()
            error.spoil(spoilt)
            is_scaled_zero = not expected.any() and error.name in ("all is 1/16 too large", PRECISION_ERRORS[0].name)
            assert torch.equal(spoilt, expected) is is_scaled_zero


def test_a_tolerance_that_is_too_wide_is_named_with_what_it_lets_through():
    expected = result((64, 128))
    with pytest.raises(AssertionError, match=r"does not notice: one element is off; all is 1/16 too large$"):
        assert_notices(functools.partial(compare, expected, tolerance=0.4), expected)


def test_a_tolerance_too_wide_for_float16_is_noticed():
    expected = result((64, 128), torch.float16)
    with pytest.raises(AssertionError, match="does not notice: sums were kept in bfloat16"):
        assert_notices(
            functools.partial(compare, expected, tolerance=2e-2), expected, planted=PLANTED_ERRORS + PRECISION_ERRORS
        )


def test_a_tolerance_that_is_too_narrow_fails_at_once():
    expected = result((3, 5))
    with pytest.raises(AssertionError, match="not equal"):
        assert_notices(functools.partial(compare, expected, tolerance=0), expected + 1e-6)
