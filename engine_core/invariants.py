"""What must hold of the engine's state between any two calls."""

from __future__ import annotations

from collections.abc import Mapping

from .kv.cache_manager import CacheManager
from .request import ChildStatus, Request, RequestKey
from .scheduler import Scheduler


def check_accounting(requests: Mapping[RequestKey, Request], scheduler: Scheduler, cache: CacheManager) -> None:
    """Assert that blocks, queues and requests agree. Costs O(blocks).

    Raises:
        AssertionError: naming what does not agree.
    """
    running = scheduler.running
    cache.check_invariants(running)
    living = {
        child
        for request in requests.values()
        for child in request.children.values()
        if child.status is not ChildStatus.FINISHED
    }
    waiting = scheduler.waiting.children()
    assert len(waiting) == len(scheduler.waiting), "the waiting queue's length is wrong"
    assert len(running) + len(waiting) == len(living), "a child is both running and waiting, or lost"
    assert living == {*running, *waiting}, "a child is neither running nor waiting, or outlives its request"
    assert all(child.status is ChildStatus.RUNNING for child in running), "a child runs with another status"
    assert not any(child.block_ids for child in waiting), "a waiting child holds blocks"
    num_new = sum(child.request.first_scheduled_s is None for child in waiting)
    assert num_new == scheduler.waiting.num_new_requests, "requests that never ran are counted wrongly"
    alone = scheduler.alone
    assert alone is None or all(child.request is alone for child in running), "a suspect does not run alone"
    if not living:
        assert cache.pool.num_used_blocks == 0, "blocks are used by nobody"
