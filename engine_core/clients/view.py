"""What people who watch the engine see of it: what its blocks hold, and how far its requests are.

A picture is bounded whatever the engine's size, so that watching never shows in a step: of a large pool some blocks of
each stretch are looked at, of many requests the first are told. It holds no text, no token and no id that a user chose.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from ..kv.cache_manager import CacheManager
from ..kv.free_queue import Block
from ..output_processor import OutputProcessor
from ..request import Child, ChildStatus

# So many blocks are looked at in 1 to 3 ms, whatever the pool (20,000 and 500,000 blocks on a busy 2-core machine).
MAX_CELLS = 2048
MAX_SAMPLES_PER_CELL = 4
MAX_REQUESTS = 100

FREE, CACHED, USED, SHARED = "0123"
"""States of a block: nothing in it; content that is found again, which nobody uses; in one block table; in several."""

PlainValue = Any  # Any: what msgpack can carry; `engine_view` documents its shape


def engine_view(cache: CacheManager, processor: OutputProcessor) -> PlainValue:
    """Return a picture of the engine.

    Returns:
        num_blocks, num_used_blocks, num_findable_blocks (used ones among them): exact counts of the pool.
        blocks_per_cell, samples_per_cell: the pool is cut into cells of so many consecutive blocks, the last may have
            fewer, and of each so many blocks are looked at, evenly spread.
        cells: one character for each of these blocks, cell by cell; see FREE, CACHED, USED, SHARED.
        num_children: living children of requests.
        requests: at most MAX_REQUESTS of them, those with blocks first; see `_child_view`.
    """
    blocks = cache.pool.blocks
    blocks_per_cell = max(1, -(-len(blocks) // MAX_CELLS))
    samples_per_cell = min(blocks_per_cell, MAX_SAMPLES_PER_CELL)
    children = [child for request in processor.requests.values() for child in request.children.values()]
    children = [child for child in children if child.status is not ChildStatus.FINISHED]
    with_blocks = (child for child in children if child.block_ids)
    without = (child for child in children if not child.block_ids)
    told = [child for child, _ in zip(chain(with_blocks, without), range(MAX_REQUESTS), strict=False)]
    return {
        "num_blocks": len(blocks),
        "num_used_blocks": cache.pool.num_used_blocks,
        "num_findable_blocks": len(cache.prefix_cache),
        "blocks_per_cell": blocks_per_cell,
        "samples_per_cell": samples_per_cell,
        "cells": _cells(blocks, blocks_per_cell, samples_per_cell),
        "num_children": len(children),
        "requests": [_child_view(child) for child in told],
    }


def _cells(blocks: list[Block], blocks_per_cell: int, samples_per_cell: int) -> str:
    offsets = [sample * blocks_per_cell // samples_per_cell for sample in range(samples_per_cell)]
    num_blocks = len(blocks)
    looked_at = [
        blocks[first + offset]
        for first in range(0, num_blocks, blocks_per_cell)
        for offset in offsets
        if first + offset < num_blocks
    ]
    return "".join(map(_state, looked_at))


def _state(block: Block) -> str:
    if block.ref_count == 0:
        return FREE if block.digest is None else CACHED
    return USED if block.ref_count == 1 else SHARED


def _child_view(child: Child) -> PlainValue:
    """Return how far a child is. `arrival` is the core's own running number of its request."""
    request = child.request
    return {
        "arrival": request.arrival,
        "child": child.index,
        "status": child.status.name.lower(),
        "num_prompt_tokens": request.num_prompt_tokens,
        "num_cached_tokens": request.num_cached_tokens,
        "num_computed_tokens": child.num_computed_tokens,
        "num_output_tokens": len(child.token_ids) - request.num_prompt_tokens,
        "max_output_tokens": request.max_num_tokens - request.num_prompt_tokens,
        "num_blocks": len(child.block_ids),
    }
