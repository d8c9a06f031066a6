from __future__ import annotations

import pytest
import torch

from pagewire.gpu_executor.kernels.reference.activation import silu_and_mul


@pytest.mark.parametrize("intermediate_size", [5, 171])
def test_row_has_the_same_bits_alone_and_in_any_batch(intermediate_size: int) -> None:
    gate_up = torch.randn(29, 2 * intermediate_size, generator=torch.Generator().manual_seed(0)) * 4
    together = silu_and_mul(gate_up)
    assert all(torch.equal(silu_and_mul(gate_up[i : i + 1]), together[i : i + 1]) for i in range(29))


def test_silu_gates_the_second_half_by_the_first() -> None:
    gate_up = torch.tensor([[0.0, 1.0, -200.0, 200.0, 2.0, 3.0, 5.0, 7.0]])
    expected = torch.tensor([[0.0, 3 / (1 + torch.e**-1), 0.0, 1400.0]])
    torch.testing.assert_close(silu_and_mul(gate_up), expected)
