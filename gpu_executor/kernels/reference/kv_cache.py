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
    for cache, rows, scale in (
        (kv_cache.key, key, kv_cache.key_scale),
        (kv_cache.value, value, kv_cache.value_scale),
    ):
        if cache.element_size() == 1:
            _bits(cache)[block_ids, :, offsets] = _bits(round_to_8_bits(rows, cache.dtype, scale))
        else:
            cache[block_ids, :, offsets] = rows.to(cache.dtype)


def copy_blocks(kv_cache: LayerKVCache, source: Tensor, destination: Tensor) -> None:
    """See `Ops.copy_blocks`."""
    for cache in (kv_cache.key, kv_cache.value):
        bits = _bits(cache) if cache.element_size() == 1 else cache
        bits.index_copy_(0, destination, bits.index_select(0, source))


def round_to_8_bits(values: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Divide by a scale in float32 and round to the nearest number of an 8-bit dtype, the largest ones for what is
    beyond them; NaN stays.
    """
    largest = torch.finfo(dtype).max
    return (values.float() / scale).clamp(-largest, largest).to(dtype)


def _bits(tensor: Tensor) -> Tensor:
    """8-bit floats have no indexing of their own."""
    return tensor.view(torch.uint8)
