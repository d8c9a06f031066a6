"""How near a kernel of one row must come to the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 2e-2}
"""A few units in the last place. The interpreter cuts bfloat16 off where a device rounds it, twice in a sum's norm."""

each_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Normal numbers, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(expected: Tensor, actual: Tensor) -> None:
    """Fail unless two tensors of one dtype are equal within its tolerance."""
    tolerance = TOLERANCES[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
