from __future__ import annotations

from pagewire.engine_core.kv.cache_manager import CacheManager
from pagewire.engine_core.preemption import choose_victim, preempt
from pagewire.engine_core.request import NO_ROW, Child, ChildStatus, Request
from tests.support.builders import build_request
from tests.support.engine_driver import ALICE


def build_child(arrival, priority=0):
    message = build_request(arrival, range(6), priority=priority)
    request = Request(ALICE, message, arrival=arrival, now=0.0, max_model_len=20, has_priority=True)
    return request.children[0]


def test_latest_arrival_is_the_victim_whatever_the_order_of_admission():
    first, second, third = (build_child(arrival) for arrival in (1, 2, 3))
    assert choose_victim([third, first, second]) is third


def test_lowest_priority_is_the_victim_before_the_latest_arrival():
    low, high = build_child(1, priority=2), build_child(2, priority=-2)
    assert choose_victim([low, high]) is low


def test_last_child_of_a_fork_is_the_victim():
    first = build_child(1)
    second = Child(first.request, 1, [1], (0, 1, 1))
    assert choose_victim([second, first]) is second


def test_preempted_child_keeps_its_tokens_and_nothing_else():
    cache = CacheManager(8, 4, enable_prefix_caching=True)
    child = build_child(1)
    assert cache.try_admit(child, num_reserved_blocks=0)
    child.move_to(ChildStatus.RUNNING)
    child.row_id, child.num_computed_tokens, child.num_pending_tokens = 5, 6, 1
    cache.register_full_blocks(child)
    child.token_ids.append(77)
    assert preempt(child, cache) == 5
    assert child.token_ids == [*range(6), 77]
    assert (child.status, child.row_id, child.block_ids) == (ChildStatus.PREEMPTED, NO_ROW, [])
    assert (child.num_computed_tokens, child.num_registered_blocks) == (0, 0)
    assert child.num_pending_tokens == 1, "steps in flight still draw it"
    assert cache.pool.num_used_blocks == 0
    assert cache.try_admit(child, num_reserved_blocks=0)
    assert child.num_computed_tokens == 4, "the cache gives most of it back"
