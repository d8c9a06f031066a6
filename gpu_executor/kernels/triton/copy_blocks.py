"""Copying whole KV blocks: copy on write, before a step's own writes.

A block that is written may also be read by another copy of the same call. So the blocks go through a buffer, in two
launches of one kernel; copies are rare, and a block of one layer is some tens of KiB.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...kv_cache_spec import LayerKVCache
from .launches.attention import COPY_BLOCKS
from .launches.row import CompileCase, LaunchRow, pick


@triton.jit(do_not_specialize=["block_words"], do_not_specialize_on_alignment=["block_ids"])
def copy_blocks_kernel(
    cache: tl.tensor,
    buffer: tl.tensor,
    block_ids: tl.tensor,
    block_words: tl.tensor,
    BLOCK_WORDS: tl.constexpr,
    IS_GATHER: tl.constexpr,
) -> None:
    """Copy BLOCK_WORDS words of a block, from the cache to its place in the buffer if IS_GATHER, else back.

    Programs: (number of block ids, parts of a block).
    """
    number = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    mask = offsets < block_words
    cached = cache + tl.load(block_ids + number) * block_words + offsets
    buffered = buffer + number * block_words + offsets
    if IS_GATHER:
        tl.store(buffered, tl.load(cached, mask=mask), mask=mask)
    else:
        tl.store(cached, tl.load(buffered, mask=mask), mask=mask)


def copy_blocks(kv_cache: LayerKVCache, source: Tensor, destination: Tensor) -> None:
    """Copy whole KV blocks of one layer; see `Ops.copy_blocks`.

    Args:
        kv_cache: [num_blocks, ...], contiguous, written in place.
        source: [num_copies] int64 block ids.
        destination: [num_copies] int64 block ids, no two alike.
    """
    for cache in (kv_cache.key, kv_cache.value):
        words = _as_words(cache)
        buffer = torch.empty((len(source), words.shape[1]), dtype=words.dtype, device=words.device)
        _launch(words, buffer, source, is_gather=True)
        _launch(words, buffer, destination, is_gather=False)


def _launch(words: Tensor, buffer: Tensor, block_ids: Tensor, *, is_gather: bool) -> None:
    if len(block_ids) == 0:
        return
    block_words = words.shape[1]
    row = pick(COPY_BLOCKS)
    copy_blocks_kernel[(len(block_ids), triton.cdiv(block_words, row.constants["BLOCK_WORDS"]))](
        words,
        buffer,
        block_ids,
        block_words,
        **row.constants,
        IS_GATHER=is_gather,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )


def _as_words(cache: Tensor) -> Tensor:
    """View blocks as rows of the widest integers that fit them: bits are copied, whatever they mean."""
    num_bytes = cache[0].numel() * cache.element_size()
    for dtype in (torch.int64, torch.int32, torch.int16):
        if num_bytes % dtype.itemsize == 0:
            return cache.view(cache.shape[0], -1).view(dtype)
    return cache.view(cache.shape[0], -1).view(torch.int8)


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: there and back, in the words that almost all blocks have."""
    return [
        CompileCase(
            label="gather" if is_gather else "scatter",
            function=copy_blocks_kernel,
            signature={"cache": "*i64", "buffer": "*i64", "block_ids": "*i64:8", "block_words": "i32"},
            constants={**row.constants, "IS_GATHER": is_gather},
            has_dot=False,
        )
        for is_gather in (True, False)
    ]
