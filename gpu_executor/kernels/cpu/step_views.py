"""A step and its caches as the native library sees them: views, which hold no memory of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from ...batch.forward_metadata import ForwardMetadata
from ...kv_cache_spec import LayerKVCache
from .native_library import CacheView, StepView

# csrc/kernels/kernel_table.h: ElementType.
_ELEMENT_TYPES = {
    torch.float32: 0,
    torch.float16: 1,
    torch.bfloat16: 2,
    torch.float8_e4m3fn: 3,
    torch.float8_e5m2: 4,
}


def view_step(metadata: ForwardMetadata) -> StepView:
    """Return the view of a step; valid as long as the metadata is."""
    for tensor in (metadata.positions, metadata.slot_mapping, metadata.query_start_loc, metadata.seq_lens):
        assert tensor.is_contiguous(), "a step's tensors are contiguous"
    tables = metadata.block_tables
    assert tables.stride(1) == 1 or tables.shape[1] <= 1, "a request's block ids lie side by side"
    return StepView(
        metadata.positions.shape[0],
        metadata.seq_lens.shape[0],
        tables.stride(0),
        metadata.positions.data_ptr(),
        metadata.slot_mapping.data_ptr(),
        tables.data_ptr(),
        metadata.query_start_loc.data_ptr(),
        metadata.seq_lens.data_ptr(),
    )


def view_cache(cache: LayerKVCache) -> CacheView:
    """Return the view of one layer's paged memory; valid as long as its tensors are.

    Args:
        cache: key [num_blocks, num_kv_heads, head_dim, block_size], value [num_blocks, num_kv_heads, block_size,
            head_dim], contiguous.
    """
    assert all(part.is_contiguous() for part in (cache.key, cache.value)), "the paged memory is contiguous"
    return CacheView(
        key=cache.key.data_ptr(),
        value=cache.value.data_ptr(),
        type=_ELEMENT_TYPES[cache.key.dtype],
        key_scale=cache.key_scale,
        value_scale=cache.value_scale,
        block_size=cache.value.shape[2],
    )


def address(tensor: Tensor) -> int:
    """Return where a contiguous float32 tensor begins."""
    assert tensor.dtype == torch.float32, f"the library computes in float32, not {tensor.dtype}"
    assert tensor.is_contiguous(), "the library reads plain memory"
    return tensor.data_ptr()
