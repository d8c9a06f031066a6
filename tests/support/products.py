"""How far a product is from the exact one, and how far it may be."""

from __future__ import annotations

import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.layouts import LinearWeight
from pagewire.gpu_executor.kernels.reference.dequantize import bias_of, dequantize

TOLERANCES = {torch.float32: 1e-6, torch.float16: 6e-4, torch.bfloat16: 8e-3}
"""Relative to the sum of the magnitudes of all that is added for an output: one rounding of each weight to 16 bits and
one of the output, which the interpreter cuts off at 8 bits. One 4-bit code that is wrong by 1 in 200 channels is worth
some 6e-4, which float32 shows."""


def random_rows(num_rows: int, size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Normal numbers with outliers, as a model's activations have them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, size, generator=generator)
    return torch.where(torch.rand(num_rows, size, generator=generator) < 0.01, 30 * x, x).to(dtype)


def assert_product(out: Tensor, x: Tensor, weight: LinearWeight, tolerance: float | None = None) -> None:
    """Fail unless `out` is x @ weight.T + bias within the tolerance of its dtype."""
    matrix = dequantize(weight, torch.float64)
    expected, magnitudes = x.double() @ matrix.t(), x.double().abs() @ matrix.abs().t()
    bias = bias_of(weight)
    if bias is not None:
        expected, magnitudes = expected + bias.double(), magnitudes + bias.double().abs()
    assert out.dtype == x.dtype
    assert out.shape == expected.shape
    error = ((out.double() - expected).abs() / magnitudes).max().item()
    assert error <= (tolerance or TOLERANCES[x.dtype]), f"off by {error:.2e} of what is added"
