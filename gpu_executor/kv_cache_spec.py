"""What a layer needs from the KV cache, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pagewire.checkpoint.model_config import LayerKind


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """The KV cache of one layer. Layers with equal specs share block tables.

    Attributes:
        kind: FULL keeps every token; SLIDING reads only the last `sliding_window`.
        num_kv_heads: key (and value) heads a token stores on this rank.
        head_dim: channels of a head.
        sliding_window: keys a token sees, its own included; None for FULL.
    """

    kind: LayerKind
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None = None

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Return the bytes that one token's key and value take in this layer."""
        return 2 * self.num_kv_heads * self.head_dim * dtype.itemsize


class KVCacheShape(NamedTuple):
    """The shapes of one layer's paged tensors, as `Ops.kv_cache_shape` gives them."""

    key: tuple[int, ...]
    value: tuple[int, ...]


class LayerKVCache(NamedTuple):
    """The paged memory of one layer.

    Attributes:
        key: [num_blocks, ...], KV dtype, contiguous; `Ops.kv_cache_shape` says the rest.
        value: like `key`.
        key_scale: what stored keys are multiplied by when they are read (they are divided by it when they are stored,
            in float32); other than 1 for 8-bit caches alone.
        value_scale: likewise for values.
    """

    key: Tensor
    value: Tensor
    key_scale: float = 1.0
    value_scale: float = 1.0
