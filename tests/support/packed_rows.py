"""Weights that packed rows are read from, and how near those must come."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.weights import random_fp8, random_int4, random_int8, with_large_groups

_WEIGHTS = {
    "int4": random_int4(70, 200),
    "int4-64": with_large_groups(random_int4(70, 200), 64),
    "int4-128": with_large_groups(random_int4(70, 300), 128),
    "int8": random_int8(70, 160),
    "int8-row": with_large_groups(random_int8(70, 160), 160),
    "int8-half-minimum": random_int8(70, 96, 16, has_minimum=True),
    "fp8-row": random_fp8(70, 150, 1, 150),
    "fp8-tiles": random_fp8(140, 300, 128, 128),
}
# A unit in the last place; the interpreter cuts bfloat16 off, and rounds scale * code (up to 45) before it adds minima.
_RELATIVE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
_ABSOLUTE = {torch.float32: 1e-6, torch.float16: 0.02, torch.bfloat16: 0.02}

each_weight = pytest.mark.parametrize("weight", _WEIGHTS.values(), ids=_WEIGHTS)
each_dtype = pytest.mark.parametrize("dtype", _RELATIVE, ids=str)


def assert_rows(expected: Tensor, actual: Tensor) -> None:
    """Fail unless the rows are those expected (float32), within the tolerance of their own dtype."""
    torch.testing.assert_close(actual.float(), expected, rtol=_RELATIVE[actual.dtype], atol=_ABSOLUTE[actual.dtype])
