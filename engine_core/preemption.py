"""Whom to preempt, and what that undoes."""

from __future__ import annotations

from collections.abc import Iterable

from .kv.cache_manager import CacheManager
from .request import NO_ROW, Child, ChildStatus


def choose_victim(running: Iterable[Child]) -> Child:
    """Return the child of the lowest priority, and of those the latest arrival.

    The earliest child is never chosen while another runs, so it always gets on.
    """
    return max(running, key=lambda child: child.order_key)


def preempt(child: Child, cache: CacheManager) -> int:
    """Take a running child's blocks; its tokens stay and are recomputed once it is admitted again.

    Tokens that steps in flight draw for it are still committed. Until then it is not admitted.

    Returns:
        The row that the executor must drop, or NO_ROW.
    """
    child.move_to(ChildStatus.PREEMPTED)
    cache.free(child)
    child.draft_token_ids = []
    row_id, child.row_id = child.row_id, NO_ROW
    return row_id
