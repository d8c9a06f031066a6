"""Writing the paged KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from ...kv_cache_spec import LayerKVCache


def store_kv(key: Tensor, value: Tensor, kv_cache: LayerKVCache, slot_mapping: Tensor) -> None:
    """See `Ops.store_kv`."""
    block_size = kv_cache.key.shape[2]
    used = slot_mapping >= 0
    if not bool(used.all()):
        key, value, slot_mapping = key[used], value[used], slot_mapping[used]
    block_ids = torch.div(slot_mapping, block_size, rounding_mode="floor")
    offsets = slot_mapping % block_size
    kv_cache.key[block_ids, :, offsets] = key.to(kv_cache.key.dtype)
    kv_cache.value[block_ids, :, offsets] = value.to(kv_cache.value.dtype)


def copy_blocks(kv_cache: LayerKVCache, source: Tensor, destination: Tensor) -> None:
    """See `Ops.copy_blocks`."""
    for cache in kv_cache:
        cache.index_copy_(0, destination, cache.index_select(0, source))
