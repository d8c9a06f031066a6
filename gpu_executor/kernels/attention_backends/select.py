"""Which library computes attention in place of the Triton kernels, if any."""

from __future__ import annotations

import torch

from .base import AttentionBackend
from .flash_attn import FlashAttention
from .flashinfer import FlashInfer


def select_attention(name: str, device: torch.device) -> AttentionBackend | None:
    """Return the library of that name; None for "triton", which needs none.

    Args:
        name: "flash_attn", "flashinfer" or "triton".
        device: where the model runs.

    Raises:
        ConfigError: it is not installed, or does not load.
    """
    if name == "flash_attn":
        return FlashAttention()
    if name == "flashinfer":
        return FlashInfer(device)
    return None
