"""Rows of logits that draws find hard: flat, peaked, full of ties, masked."""

from __future__ import annotations

import math

import torch
from torch import Tensor

KINDS = ["model", "flat", "peaked", "ties", "masked"]


def make_row(size: int, seed: int = 0, kind: str = "model") -> Tensor:
    """Return [size] float32, contiguous."""
    values = torch.randn(size, generator=torch.Generator().manual_seed(1000 * size + seed))
    return {
        "model": values * 2.5,  # some hundred likely tokens in a vocabulary of 50,000
        "flat": values * 0.01,
        "peaked": values * 12,
        "ties": (values * 2).round(),
        "masked": torch.where(torch.arange(size) % 7 == seed % 7, values, -math.inf) if size > 7 else values,
    }[kind].contiguous()
