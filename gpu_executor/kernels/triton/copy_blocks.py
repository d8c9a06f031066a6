"""Copying whole KV blocks: copy on write, before a step's own writes.

One launch copies keys and values of all blocks. A block that is written may also be read by another copy of the same
call: unless the caller knows better, blocks go through a buffer, in two launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...kv_cache_spec import LayerKVCache
from .launches.attention import COPY_BLOCKS
from .launches.row import CompileCase, LaunchRow, pick


@triton.jit(do_not_specialize=["block_words"], do_not_specialize_on_alignment=["sources", "destinations"])
def copy_blocks_kernel(
    key: tl.tensor,
    value: tl.tensor,
    key_out: tl.tensor,
    value_out: tl.tensor,
    sources: tl.tensor,
    destinations: tl.tensor,
    block_words: tl.tensor,
    BLOCK_WORDS: tl.constexpr,
    HAS_SOURCES: tl.constexpr,
    HAS_DESTINATIONS: tl.constexpr,
) -> None:
    """Copy BLOCK_WORDS words of a block of keys, and of one of values. Programs: (number of copies, parts of a block).

    The n-th copy is from block sources[n] to block destinations[n]; of what has no ids, it is the n-th block.
    """
    number = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK_WORDS + tl.arange(0, BLOCK_WORDS)
    mask = offsets < block_words
    source = tl.load(sources + number) if HAS_SOURCES else number
    destination = tl.load(destinations + number) if HAS_DESTINATIONS else number
    read = source * block_words + offsets
    written = destination * block_words + offsets
    keys = tl.load(key + read, mask=mask)
    values = tl.load(value + read, mask=mask)
    tl.store(key_out + written, keys, mask=mask)
    tl.store(value_out + written, values, mask=mask)


def copy_blocks(kv_cache: LayerKVCache, source: Tensor, destination: Tensor, *, is_disjoint: bool = False) -> None:
    """Copy whole KV blocks of one layer; see `Ops.copy_blocks`.

    Args:
        kv_cache: [num_blocks, ...], contiguous, written in place; a block of keys has the bytes of one of values.
        source: [num_copies] int64 block ids.
        destination: [num_copies] int64 block ids, no two alike.
        is_disjoint: no block is both a source and a destination.
    """
    if len(source) == 0:
        return
    key, value = cache = (_as_words(kv_cache.key), _as_words(kv_cache.value))
    assert key.shape == value.shape, "a block of keys is as large as one of values"
    if is_disjoint:
        _launch(cache, cache, source, destination)
        return
    buffers = torch.empty(2, len(source), key.shape[1], dtype=key.dtype, device=key.device)
    buffer = (buffers[0], buffers[1])
    _launch(cache, buffer, source, None)
    _launch(buffer, cache, None, destination)


def _launch(
    blocks: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor], sources: Tensor | None, destinations: Tensor | None
) -> None:
    ids = sources if sources is not None else destinations
    assert ids is not None, "blocks are copied from or to ids"
    block_words = blocks[0].shape[1]
    row = pick(COPY_BLOCKS)
    copy_blocks_kernel[(len(ids), triton.cdiv(block_words, row.constants["BLOCK_WORDS"]))](
        *blocks,
        *out,
        ids if sources is None else sources,
        ids if destinations is None else destinations,
        block_words,
        **row.constants,
        HAS_SOURCES=sources is not None,
        HAS_DESTINATIONS=destinations is not None,
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
    """Return the compilations of a row: at once, there and back, in the words that almost all blocks have."""
    return [
        CompileCase(
            label=label,
            function=copy_blocks_kernel,
            signature=dict.fromkeys(("key", "value", "key_out", "value_out"), "*i64")
            | dict.fromkeys(("sources", "destinations"), "*i64:8")
            | {"block_words": "i32"},
            constants={**row.constants, "HAS_SOURCES": has_sources, "HAS_DESTINATIONS": has_destinations},
            has_dot=False,
        )
        for label, has_sources, has_destinations in (
            ("at once", True, True),
            ("gather", True, False),
            ("scatter", False, True),
        )
    ]
