"""Rotary position embedding in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layouts import RotaryTable


def rotary(query: Tensor, key: Tensor, positions: Tensor, table: RotaryTable) -> tuple[Tensor, Tensor]:
    """See `Ops.rotary`."""
    cos = table.cos.index_select(0, positions).unsqueeze(1)
    sin = table.sin.index_select(0, positions).unsqueeze(1)
    return _rotate(query, cos, sin), _rotate(key, cos, sin)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    first, second, rest = torch.split(heads.float(), [half, half, heads.shape[-1] - 2 * half], dim=-1)
    rotated = (first * cos - second * sin, second * cos + first * sin, rest)
    return torch.cat(rotated, dim=-1).to(heads.dtype)
