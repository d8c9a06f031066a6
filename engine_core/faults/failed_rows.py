"""What else a row takes with it when the executor could not run it."""

from __future__ import annotations

from collections.abc import Container, Iterable

from pagewire.ipc.steps import StepResult

from ..kv.cache_manager import CacheManager
from ..request import Child, ChildStatus
from ..scheduled import ScheduledChild
from ..scheduler import Scheduler
from ..steps.in_flight import StepInFlight, StepsInFlight


def void_readers_of_failed(
    step: StepInFlight, result: StepResult, in_flight: StepsInFlight, scheduler: Scheduler, cache: CacheManager
) -> None:
    """Send back to waiting whoever may have read what rows of a step that came back failed to write.

    Args:
        step: the oldest in flight.
        result: its answer.
        in_flight: that step and those after it.
        scheduler: preempts the readers.
        cache: forgets what they and the failed rows registered.
    """
    failed_ids = {row.row_id for row in result.rows if row.error is not None}
    if not failed_ids:
        return
    shares = list(in_flight.scheduled())
    at_fault: set[Child] = set()
    for item in step.scheduled:
        if item.row_id in failed_ids:
            # A row that read what another failed to write may fail for that reason alone: it is tried again, and
            # blames nobody, but nor did it write. Writers stand before their readers, so the first failure is a
            # true one.
            if not item.is_void:
                at_fault.add(item.child)
            _void_readers(item, shares, at_fault, scheduler, cache)


def _void_readers(
    failed: ScheduledChild,
    in_flight: Iterable[ScheduledChild],
    at_fault: Container[Child],
    scheduler: Scheduler,
    cache: CacheManager,
) -> None:
    """Send back to waiting whoever may have read blocks that the failed row was to write.

    Blocks can be found as soon as the step that fills them is scheduled, so children of that step and of the one
    scheduled ahead may have hit blocks that were never written. What they draw in those steps is dropped, what they
    wrote is forgotten, and they are computed again: the failed request fails alone.

    Args:
        failed: the row's share of the step whose result brought the error.
        in_flight: all shares of that step and of those after it.
        at_fault: children that failed by themselves: what they read is no excuse.
        scheduler: preempts the readers.
        cache: forgets what the row and the readers registered.
    """
    first_block = failed.num_computed_tokens // cache.block_size
    digest = failed.child.digests[first_block : first_block + 1]
    if not digest:
        return
    for item in in_flight:
        child = item.child
        # An equal digest means an equal head: the child read either that block or an equal one of its own.
        if child.digests[first_block : first_block + 1] != digest:
            continue
        cache.forget_from(child, first_block)
        if child not in at_fault:
            item.is_void = True
            if child.status is ChildStatus.RUNNING:
                scheduler.preempt(child)
