from __future__ import annotations

import pytest

from pagewire.engine_core.kv.cache_manager import CacheManager
from pagewire.engine_core.request import Child, Request
from tests.support.builders import build_request
from tests.support.engine_driver import ALICE

BLOCK = 4


def build_child(num_tokens, *, first=0, n=1, **options):
    message = build_request(1, range(first, first + num_tokens), n=n, **options)
    return Request(ALICE, message, arrival=1, now=0.0, max_model_len=100, has_priority=False).children[0]


def build_cache(num_blocks=8, caching=True):
    return CacheManager(num_blocks, BLOCK, enable_prefix_caching=caching)


def admit(cache, child, *, computed):
    assert cache.try_admit(child, num_reserved_blocks=0)
    child.num_computed_tokens = computed
    cache.register_full_blocks(child)
    return child


def test_admission_takes_the_whole_prompt_or_nothing():
    cache = build_cache(num_blocks=3)
    child = build_child(13)
    assert not cache.try_admit(child, num_reserved_blocks=0)
    assert (child.block_ids, cache.pool.num_used_blocks) == ([], 0)
    small = build_child(12)
    assert not cache.try_admit(small, num_reserved_blocks=1)
    assert cache.try_admit(small, num_reserved_blocks=0)
    assert small.block_ids == [0, 1, 2]


def test_failed_admission_leaves_hits_where_they_were():
    cache = build_cache(num_blocks=4)
    cache.free(admit(cache, build_child(9), computed=9))
    assert not cache.try_admit(build_child(17), num_reserved_blocks=0)
    assert cache.pool.num_free_blocks == 4
    cache.check_invariants([])


def test_extension_within_the_last_block_needs_nothing():
    cache = build_cache()
    child = admit(cache, build_child(6), computed=6)
    assert cache.try_extend(child, 2).new_block_ids == []
    assert cache.try_extend(child, 3).new_block_ids == [2]


def test_extension_that_does_not_fit_changes_nothing():
    cache = build_cache(num_blocks=2)
    child = admit(cache, build_child(8), computed=8)
    assert cache.try_extend(child, 1) is None
    assert child.block_ids == [0, 1]
    cache.check_invariants([child])


@pytest.mark.parametrize("num_blocks", [3, 4])
def test_shared_block_and_new_block_are_both_needed_or_none(num_blocks):
    cache = build_cache(num_blocks=num_blocks)
    parent = admit(cache, build_child(6, n=2), computed=6)
    child = Child(parent.request, 1, list(parent.token_ids), (0, 1, 1))
    cache.fork(parent, child)
    extension = cache.try_extend(child, 4)
    if num_blocks == 3:
        assert extension is None
        assert child.block_ids == [0, 1]
    else:
        assert extension.copy == (1, 2)
        assert (extension.copy_index, extension.new_block_ids) == (1, [3])
        assert child.block_ids == [0, 2, 3]
    cache.check_invariants([parent, child])


def test_last_holder_of_a_block_writes_in_place():
    cache = build_cache()
    parent = admit(cache, build_child(6, n=2), computed=6)
    child = Child(parent.request, 1, list(parent.token_ids), (0, 1, 1))
    cache.fork(parent, child)
    cache.free(parent)
    assert cache.try_extend(child, 1).copy is None


def test_block_is_found_once_it_is_full_and_its_tokens_are_known():
    cache = build_cache()
    child = admit(cache, build_child(7), computed=7)
    assert len(cache.prefix_cache) == 1
    child.num_computed_tokens = 8  # the eighth token is in flight, nobody knows it
    cache.register_full_blocks(child)
    assert len(cache.prefix_cache) == 1
    child.token_ids.append(50)
    cache.register_full_blocks(child)
    assert len(cache.prefix_cache) == 2


def test_digests_are_made_before_admission_unless_the_cache_is_not_read():
    cache = build_cache()
    for child, expected in ((build_child(9), 2), (build_child(9, prompt_logprobs=1), 0)):
        cache.prepare(child.request)
        assert len(child.digests) == expected
    off = build_child(9)
    build_cache(caching=False).prepare(off.request)
    assert off.digests == []


def test_forgotten_content_is_not_found():
    cache = build_cache()
    child = admit(cache, build_child(12), computed=12)
    cache.forget_from(child, 1)
    other = build_child(12)
    assert cache.try_admit(other, num_reserved_blocks=0)
    assert other.num_computed_tokens == BLOCK
