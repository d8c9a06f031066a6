"""What the steps have taken since the core's start: the counters of `StepStats`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from pagewire.ipc.outputs import STEP_SIZES, StepStats
from pagewire.ipc.steps import StepResult

from ..drafts.speculation import DraftCounts
from ..kv.cache_manager import CacheManager
from ..output_processor import OutputProcessor
from ..rest.rest import Rest
from ..scheduler import Scheduler


class StepTotals:
    """Counts steps as they are scheduled and as they come back; the counts go on whatever becomes of executors."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._num_scheduled_tokens = 0
        self._step_s = 0.0
        self._device_s = 0.0
        self._host_gap_s = 0.0
        self._num_step_tokens = 0
        self._step_sizes = [0] * (len(STEP_SIZES) + 1)
        self._num_busy_rows = 0
        self._num_available_rows = 0

    def leave_waiting(self, num_rows: int, num_available_rows: int) -> None:
        """Count the rows of a step that left requests waiting; with an empty queue, rows idle for lack of requests.

        Args:
            num_rows: that compute.
            num_available_rows: that the step could have had.
        """
        self._num_busy_rows += num_rows
        self._num_available_rows += num_available_rows

    def finish(self, result: StepResult, num_scheduled_tokens: int) -> None:
        """Count a step that came back.

        Args:
            result: with the times that the executor measured.
            num_scheduled_tokens: that the step computed.
        """
        self._num_steps += 1
        self._num_scheduled_tokens = num_scheduled_tokens
        self._num_step_tokens += num_scheduled_tokens
        self._step_sizes[bisect_left(STEP_SIZES, num_scheduled_tokens)] += 1
        self._step_s = result.step_s
        self._device_s += result.device_s
        self._host_gap_s += result.host_gap_s

    def stats(
        self,
        scheduler: Scheduler,
        cache: CacheManager,
        processor: OutputProcessor,
        drafts: DraftCounts,
        *,
        num_executor_restarts: int,
        is_serving: bool,
        rest: Rest,
    ) -> StepStats:
        """Return the whole core's state: these counts, and what the engine's parts say of themselves now."""
        pool = cache.pool
        return StepStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_blocks=len(pool.blocks),
            num_used_blocks=pool.num_used_blocks,
            num_steps=self._num_steps,
            num_scheduled_tokens=self._num_scheduled_tokens,
            num_prompt_tokens=processor.num_prompt_tokens,
            num_generation_tokens=processor.num_generation_tokens,
            prefix_cache_queries=scheduler.prefix_cache_queries,
            prefix_cache_hits=scheduler.prefix_cache_hits,
            num_preemptions=scheduler.num_preemptions,
            step_s=self._step_s,
            num_filled_slots=cache.num_filled_slots(scheduler.running),
            num_busy_rows=self._num_busy_rows,
            num_available_rows=self._num_available_rows,
            num_waiting_tokens=scheduler.waiting.num_new_tokens,
            num_executor_restarts=num_executor_restarts,
            device_s=self._device_s,
            host_gap_s=self._host_gap_s,
            num_draft_checks=drafts.num_checks,
            num_draft_tokens=drafts.num_drafts,
            accepted_at=tuple(drafts.accepted_at),
            num_step_tokens=self._num_step_tokens,
            step_sizes=tuple(self._step_sizes),
            is_serving=is_serving or rest.is_asleep,
            is_paused=rest.is_paused,
            sleep_level=rest.sleep_level,
            running_adapters=_ascending(child.request.adapter_id for child in scheduler.running),
            waiting_adapters=_ascending((+scheduler.waiting.num_with_adapter).keys()),
        )


def _ascending(adapter_ids: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(adapter_ids) - {0}))  # 0: none
