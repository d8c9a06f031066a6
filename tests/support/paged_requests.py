"""Requests with random queries, keys and values in scattered blocks of a poisoned cache, for tests of attention."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pagewire.gpu_executor.batch.forward_metadata import ForwardMetadata
from pagewire.gpu_executor.kernels.reference import kv_cache as reference_kv
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kv_cache_spec import LayerKVCache
from tests.support.paged import Chunk, paged_step

Attend = Callable[[Tensor, LayerKVCache, ForwardMetadata], Tensor]
Part = tuple[int, int, int]
"""A request, the position of its first token in the step, and its number of tokens."""


class PagedRequests:
    """Some requests' attention inputs.

    Args:
        lengths: tokens of each request.
        heads: query heads, KV heads, head_dim.
        block_size: tokens of a block.
        dtype: of queries, keys and values before they are stored.
        kv_dtype: of the cache; None: as dtype.
        scales: of cached keys and values.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        heads: tuple[int, int, int],
        *,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        num_heads, self.num_kv_heads, self.head_dim = heads
        self.block_size, self.kv_dtype, self.scales = block_size, kv_dtype or dtype, scales
        generator = torch.Generator().manual_seed(0)

        def rows(length: int, num_rows: int) -> Tensor:
            return torch.randn(length, num_rows, self.head_dim, generator=generator).to(dtype)

        self.queries = [rows(n, num_heads) for n in lengths]
        self.keys = [rows(n, self.num_kv_heads) for n in lengths]
        self.values = [rows(n, self.num_kv_heads) for n in lengths]
        blocks = list(range(sum(-(-n // block_size) for n in lengths) + 2))
        self.num_blocks = len(blocks)
        random.Random(0).shuffle(blocks)
        self.block_ids = [[blocks.pop() for _ in range(-(-n // block_size))] for n in lengths]

    @property
    def scale(self) -> float:
        """Logit multiplier of the head size."""
        return float(self.head_dim**-0.5)

    def step(self, parts: Sequence[Part]) -> tuple[Tensor, LayerKVCache, ForwardMetadata]:
        """Return queries, cache and metadata of a step: what comes before a part is cached, what comes after is NaN."""
        cache = self._poisoned_cache()
        stored = paged_step([Chunk(self.block_ids[r], 0, start + n) for r, start, n in parts], self.block_size)
        key, value = (torch.cat([kv[r][: s + n] for r, s, n in parts]) for kv in (self.keys, self.values))
        reference_kv.store_kv(key, value, cache, stored.slot_mapping)
        query = torch.cat([self.queries[r][start : start + n] for r, start, n in parts])
        step = paged_step([Chunk(self.block_ids[r], start, n) for r, start, n in parts], self.block_size)
        return query, cache, step

    def attend(self, attend: Attend, parts: Sequence[Part]) -> list[Tensor]:
        """Attend some parts in one step, and return each one's output."""
        return list(attend(*self.step(parts)).split([n for _, _, n in parts]))

    def _poisoned_cache(self) -> LayerKVCache:
        shape = (self.num_blocks, self.num_kv_heads, self.block_size, self.head_dim)
        key, value = (torch.full(shape, torch.nan).to(self.kv_dtype) for _ in range(2))
        return LayerKVCache(key, value, *self.scales)


def reference_attention(
    query: Tensor, cache: LayerKVCache, step: ForwardMetadata, *, scale: float, window: int | None, cap: float | None
) -> Tensor:
    """Return what the reference computes of the same inputs, in float32."""
    ops = ReferenceOps()
    return ops.paged_attention(query.float(), cache, step, scale=scale, sliding_window=window, soft_cap=cap)
