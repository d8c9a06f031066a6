from __future__ import annotations

import torch

from pagewire.gpu_executor.kernels.layouts import RotaryTable
from pagewire.gpu_executor.kernels.reference.rotary import rotary


def test_channel_pairs_turn_by_their_angle_and_the_rest_stays() -> None:
    angles = torch.tensor([[0.0, 0.0], [0.5, 1.25], [2.0, -0.75]])
    table = RotaryTable(cos=angles.cos(), sin=angles.sin())
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 3, 6, generator=generator), torch.randn(2, 1, 6, generator=generator)
    positions = torch.tensor([2, 0])
    for heads, rotated in zip((query, key), rotary(query, key, positions, table), strict=True):
        turned = (
            torch.complex(heads[..., :2], heads[..., 2:4]) * torch.polar(torch.ones(2, 2), angles[positions])[:, None]
        )
        torch.testing.assert_close(rotated, torch.cat((turned.real, turned.imag, heads[..., 4:]), dim=-1))
