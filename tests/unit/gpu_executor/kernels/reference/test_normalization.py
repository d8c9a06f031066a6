from __future__ import annotations

import torch

from pagewire.gpu_executor.kernels.reference.normalization import add_rms_norm, rms_norm


def test_rms_norm_is_its_formula_in_every_dtype() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(7, 3, 80, generator=generator), torch.randn(80, generator=generator)
    expected = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5).double(), expected, atol=1e-5, rtol=1e-5)
    half = rms_norm(x.bfloat16(), weight.bfloat16(), 1e-5)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), expected, atol=2e-2, rtol=2e-2)


def test_add_rms_norm_returns_the_normed_sum_and_the_sum() -> None:
    generator = torch.Generator().manual_seed(0)
    x, residual = torch.randn(5, 96, generator=generator), torch.randn(5, 96, generator=generator)
    normed, total = add_rms_norm(x, residual, torch.ones(96), 1e-6)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, rms_norm(total, torch.ones(96), 1e-6))


def test_row_has_the_same_bits_alone_and_in_any_batch() -> None:
    x = torch.randn(33, 576, generator=torch.Generator().manual_seed(2))
    together = rms_norm(x, torch.ones(576), 1e-5)
    assert all(torch.equal(rms_norm(x[i : i + 1], torch.ones(576), 1e-5), together[i : i + 1]) for i in range(33))
