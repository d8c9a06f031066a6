from __future__ import annotations

import pytest

from pagewire.engine_core.kv.block_pool import BlockPool
from pagewire.engine_core.kv.prefix_cache import PrefixCache
from pagewire.ipc.block_hash import BlockDigest


def build_pool(num_blocks=6):
    cache = PrefixCache()
    return BlockPool(num_blocks, cache), cache


def register(pool, cache, *block_ids):
    for block_id in block_ids:
        cache.insert(BlockDigest(bytes([block_id])), pool.blocks[block_id])


def test_blocks_without_content_are_taken_before_cached_ones():
    pool, cache = build_pool(4)
    table = pool.take(3)
    register(pool, cache, 0, 1)
    pool.release(table)
    assert pool.take(4) == [2, 3, 1, 0]


def test_tail_of_a_request_is_taken_before_its_head():
    pool, cache = build_pool(3)
    register(pool, cache, *pool.take(3))
    pool.release([0, 1, 2])
    assert [pool.take(1)[0] for _ in range(3)] == [2, 1, 0]


def test_least_recently_used_request_is_evicted_first():
    pool, cache = build_pool(4)
    first, second = pool.take(2), pool.take(2)
    register(pool, cache, *first, *second)
    pool.release(first)
    pool.release(second)
    pool.share(first)
    pool.release(first)
    assert pool.take(2) == [3, 2]
    assert len(cache) == 2


def test_taken_block_is_not_found_any_more():
    pool, cache = build_pool(1)
    register(pool, cache, *pool.take(1))
    pool.release([0])
    assert cache.find(BlockDigest(b"\0")) is pool.blocks[0]
    pool.take(1)
    assert cache.find(BlockDigest(b"\0")) is None
    assert pool.blocks[0].digest is None


def test_hit_on_a_free_block_makes_it_used():
    pool, cache = build_pool(2)
    register(pool, cache, *pool.take(1))
    pool.release([0])
    assert pool.num_used_blocks == 0
    pool.share([0])
    assert (pool.num_used_blocks, pool.num_free_blocks) == (1, 1)
    pool.check_invariants([[0]])


def test_shared_block_is_free_after_its_last_release():
    pool, _ = build_pool(2)
    pool.take(1)
    pool.share([0])
    pool.release([0])
    assert pool.num_used_blocks == 1
    pool.release([0])
    assert pool.num_used_blocks == 0


def test_double_free_is_an_error():
    pool, _ = build_pool(1)
    pool.take(1)
    pool.release([0])
    with pytest.raises(AssertionError, match="freed twice"):
        pool.release([0])


def test_invariants_name_a_reference_that_is_not_counted():
    pool, _ = build_pool(2)
    table = pool.take(1)
    with pytest.raises(AssertionError, match="block 0: ref_count 1, 2 references"):
        pool.check_invariants([table, table])


def test_invariants_name_a_block_that_is_free_and_used():
    pool, _ = build_pool(2)
    pool.blocks[1].ref_count = 1
    with pytest.raises(AssertionError, match="block 1 is both free and used"):
        pool.check_invariants([[1]])
