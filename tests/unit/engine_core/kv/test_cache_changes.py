"""What is told of a prefix cache is what it holds, in few words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagewire.engine_core.kv.cache_changes import CacheChanges
from pagewire.engine_core.kv.free_queue import Block
from pagewire.engine_core.kv.prefix_cache import PrefixCache
from pagewire.ipc.block_hash import BlockDigest, block_digest, block_key
from pagewire.ipc.outputs import PrefixCacheChanges

DIGESTS = [block_digest(BlockDigest(b""), [index]) for index in range(6)]
ACTIONS = st.lists(st.tuples(st.sampled_from(["insert", "evict", "clear", "take"]), st.integers(0, 5)))


def apply(known: set[int], changes: PrefixCacheChanges) -> set[int]:
    kept = set() if changes.is_snapshot else known - set(changes.evicted)
    return kept | set(changes.stored)


@given(ACTIONS)
def test_whoever_applies_all_changes_knows_what_is_cached(actions: list[tuple[str, int]]):
    cache = PrefixCache()
    cache.changes = CacheChanges()
    known: set[int] = set()
    for action, index in [*actions, ("take", 0)]:
        match action:
            case "insert":
                cache.insert(DIGESTS[index], Block(index))
            case "evict":
                cache.evict(cache.find(DIGESTS[index]) or Block(index))
            case "clear":
                cache.clear()
            case "take":
                known = apply(known, cache.changes.take() or PrefixCacheChanges())
                assert known == {block_key(digest) for digest in cache.digests}


def test_block_that_comes_and_goes_is_told_of_once():
    changes = CacheChanges()
    for _ in range(5):
        changes.store(DIGESTS[0])
        changes.evict(DIGESTS[0])
    taken = changes.take()
    assert taken is not None
    assert (len(taken.stored), len(taken.evicted)) == (0, 1)
    assert changes.take() is None
