from __future__ import annotations

from pagewire.engine_core.kv.free_queue import Block
from pagewire.engine_core.kv.prefix_cache import PrefixCache
from pagewire.ipc.block_hash import BlockDigest


def digests(count):
    return [BlockDigest(bytes([index])) for index in range(count)]


def build_cache(count):
    cache = PrefixCache()
    blocks = [Block(index) for index in range(count)]
    for digest, block in zip(digests(count), blocks, strict=True):
        cache.insert(digest, block)
    return cache, blocks


def test_first_of_two_equal_blocks_stays():
    cache, (first,) = build_cache(1)
    second = Block(1)
    cache.insert(*digests(1), second)
    assert cache.find(*digests(1)) is first
    assert second.digest is None
    cache.check_invariants()


def test_prefix_ends_at_the_first_unknown_block():
    cache, blocks = build_cache(3)
    cache.evict(blocks[1])
    assert cache.find_prefix(digests(3)) == [blocks[0]]


def test_evicting_a_block_without_content_changes_nothing():
    cache, _ = build_cache(2)
    cache.evict(Block(7))
    assert len(cache) == 2


def test_cleared_cache_finds_nothing_and_blocks_can_get_new_content():
    cache, blocks = build_cache(2)
    cache.clear()
    assert cache.find_prefix(digests(2)) == []
    cache.insert(BlockDigest(b"new"), blocks[0])
    cache.check_invariants()
