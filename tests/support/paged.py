"""Steps and paged caches by hand, for tests of models and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pagewire.gpu_executor.batch.forward_metadata import ForwardMetadata
from pagewire.gpu_executor.kv_cache_spec import KVCacheSpec, LayerKVCache

# Beyond any pool: reading an entry of a block table past a request's last block fails at once.
_NO_BLOCK = 2**30


class Chunk(NamedTuple):
    """What one request does in a step: `num_tokens` tokens from position `start` on, over its blocks."""

    block_ids: Sequence[int]
    start: int
    num_tokens: int


def paged_step(chunks: Sequence[Chunk], block_size: int = 16) -> ForwardMetadata:
    """Return the metadata of a step with one chunk a request."""
    positions: list[int] = []
    slots: list[int] = []
    query_start_loc = [0]
    block_tables = torch.full((len(chunks), max(len(chunk.block_ids) for chunk in chunks)), _NO_BLOCK)
    for row, (block_ids, start, num_tokens) in enumerate(chunks):
        block_tables[row, : len(block_ids)] = torch.tensor(block_ids)
        positions += range(start, start + num_tokens)
        slots += [block_ids[p // block_size] * block_size + p % block_size for p in range(start, start + num_tokens)]
        query_start_loc.append(query_start_loc[-1] + num_tokens)
    seq_lens = [chunk.start + chunk.num_tokens for chunk in chunks]
    return ForwardMetadata(
        positions=torch.tensor(positions),
        slot_mapping=torch.tensor(slots),
        block_tables=block_tables.to(torch.int32),
        query_start_loc=torch.tensor(query_start_loc, dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        logits_indices=torch.arange(len(positions)),
        block_size=block_size,
        max_query_len=max(chunk.num_tokens for chunk in chunks),
        max_seq_len=max(seq_lens),
    )


def nan_filled_cache(
    spec: KVCacheSpec, num_blocks: int, *, block_size: int = 16, dtype: torch.dtype = torch.float32
) -> LayerKVCache:
    """Return one layer's cache whose every slot poisons what reads it before it is written."""
    shape = (num_blocks, spec.num_kv_heads, block_size, spec.head_dim)
    return LayerKVCache(torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype))
