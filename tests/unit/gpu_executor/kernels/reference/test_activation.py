from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.reference.activation import gelu_tanh_and_mul, silu_and_mul


@pytest.mark.parametrize("gate", [silu_and_mul, gelu_tanh_and_mul])
@pytest.mark.parametrize("intermediate_size", [5, 171])
def test_row_has_the_same_bits_alone_and_in_any_batch(intermediate_size: int, gate: Callable[[Tensor], Tensor]) -> None:
    gate_up = torch.randn(29, 2 * intermediate_size, generator=torch.Generator().manual_seed(0)) * 4
    together = gate(gate_up)
    assert all(torch.equal(gate(gate_up[i : i + 1]), together[i : i + 1]) for i in range(29))


def test_silu_gates_the_second_half_by_the_first() -> None:
    gate_up = torch.tensor([[0.0, 1.0, -200.0, 200.0, 2.0, 3.0, 5.0, 7.0]])
    expected = torch.tensor([[0.0, 3 / (1 + torch.e**-1), 0.0, 1400.0]])
    torch.testing.assert_close(silu_and_mul(gate_up), expected)


def test_gelu_gates_the_second_half_by_the_first() -> None:
    gate, up = torch.linspace(-9, 9, 301), torch.full((301,), 3.0)
    expected = 3 * torch.nn.functional.gelu(gate.double(), approximate="tanh")
    torch.testing.assert_close(gelu_tanh_and_mul(torch.cat([gate, up]).unsqueeze(0))[0], expected.float())
