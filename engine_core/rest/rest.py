"""Whether the engine rests, and what of its requests still runs: a state machine without I/O.

Paused, it schedules nothing, and its executors keep their memory. Asleep, it has none. New requests are taken all the
same and wait, bounded as ever. What becomes of those that are here says the mode:

    abort  they end now, with what they have
    wait   they run to their ends first; only those that come later wait
    keep   they wait as well, and go on where they were
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pagewire.ipc.outputs import FinishReason

from ..kv.cache_manager import CacheManager
from ..output_processor import OutputProcessor
from ..request import Request
from ..scheduler import Scheduler

RestMode = Literal["abort", "wait", "keep"]


class Rest:
    """See the module.

    Args:
        scheduler, cache, processor: of the engine that rests.
        on_change: called when more may run than before, or less.

    Attributes:
        is_paused: whether it was paused, and not resumed since.
        sleep_level: above 0: it was put to sleep, and not woken since.
        last_running: requests that arrived later wait; None: all do, if the engine rests.
    """

    def __init__(
        self, scheduler: Scheduler, cache: CacheManager, processor: OutputProcessor, *, on_change: Callable[[], None]
    ) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._processor = processor
        self._on_change = on_change
        self.is_paused = False
        self.sleep_level = 0
        self.last_running: int | None = None

    @property
    def is_asleep(self) -> bool:
        """Whether it was put to sleep."""
        return self.sleep_level > 0

    @property
    def is_on(self) -> bool:
        """Whether the engine is paused or asleep."""
        return self.is_paused or self.is_asleep

    def pause(self, mode: RestMode) -> None:
        """Schedule nothing from here on; `mode` says what becomes of the requests that are here."""
        self.is_paused = True
        self._settle(mode)

    def sleep(self, level: int, mode: RestMode) -> None:
        """The same, until `wake_up`; executors may end once nothing runs."""
        self.sleep_level = level
        self._settle(mode)

    def resume(self) -> None:
        """Go on, unless asleep."""
        self.is_paused = False
        self._settle_end()

    def wake_up(self) -> None:
        """Go on once there are executors, unless paused."""
        self.sleep_level = 0
        self._settle_end()

    def lets_run(self) -> bool:
        """Whether anything may be scheduled."""
        if self.last_running is None:
            return not self.is_on
        oldest = next(iter(self._processor.requests.values()), None)  # they are kept in the order of their arrival
        return oldest is not None and self.lets_run_request(oldest)

    def lets_run_request(self, request: Request) -> bool:
        """Whether a request may be scheduled."""
        if self.last_running is None:
            return not self.is_on
        return request.arrival <= self.last_running

    def forget_computed(self, *, runs_again: bool) -> None:
        """Forget cached blocks; `runs_again`: also what running requests have, so that all of it is computed again."""
        if runs_again:
            for child in list(self._scheduler.running):
                self._scheduler.preempt(child)
        self._cache.reset_prefix_cache()

    def _settle(self, mode: RestMode) -> None:
        newest = next(reversed(self._processor.requests.values()), None)
        self.last_running = newest.arrival if mode == "wait" and newest is not None else None
        self._scheduler.waiting.hold(self.last_running)
        if mode == "abort":
            for request in list(self._processor.requests.values()):
                self._processor.end_early(request, FinishReason.ABORT)
        self._on_change()

    def _settle_end(self) -> None:
        if not self.is_on:
            self.last_running = None
            self._scheduler.waiting.hold(None)
        self._on_change()
