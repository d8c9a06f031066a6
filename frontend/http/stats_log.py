"""The line of throughput figures that the log shows every 10 s, in the wording that log readers know."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import zip_longest
from typing import NamedTuple

from .engine_totals import EngineTotals

INTERVAL_S = 10.0

logger = logging.getLogger(__name__)


class StatsLog:
    """Says what the engine did since the last line; nothing while it is idle.

    Args:
        totals: the engine's counters.
        device: "cpu" or a GPU's name.
        clock: seconds, monotonic.
    """

    def __init__(self, totals: EngineTotals, device: str, clock: Callable[[], float]) -> None:
        self._totals = totals
        self._memory = "CPU" if device == "cpu" else "GPU"
        self._clock = clock
        self._time = clock()
        self._num_prompt_tokens = 0.0
        self._num_generation_tokens = 0.0
        self._drafts = _Drafts()
        self._was_busy = False

    async def run(
        self, interval_s: float = INTERVAL_S, *, refresh: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        """Log a line each interval, until cancelled; `refresh` first brings the totals up to date."""
        while True:
            await asyncio.sleep(interval_s)
            if refresh is not None:
                await refresh()
            line = self.next_line()
            if line is not None:
                logger.info("%s", line)
            draft_line = self.next_draft_line()
            if draft_line is not None:
                logger.info("%s", draft_line)

    def next_line(self) -> str | None:
        """Return the line for the time since the last call; None if nothing happened.

        The first idle interval after a busy one still gets its line: the log ends on the state of rest.
        """
        totals, now = self._totals, self._clock()
        elapsed_s, self._time = max(now - self._time, 1e-9), now
        prompt, generation = totals.total("num_prompt_tokens"), totals.total("num_generation_tokens")
        num_prompt = prompt - self._num_prompt_tokens
        num_generation = generation - self._num_generation_tokens
        self._num_prompt_tokens, self._num_generation_tokens = prompt, generation
        stats = totals.latest
        is_busy = bool(num_prompt or num_generation or stats.num_running or stats.num_waiting)
        is_silent, self._was_busy = not (is_busy or self._was_busy), is_busy
        if is_silent:
            return None
        queries, hits = totals.total("prefix_cache_queries"), totals.total("prefix_cache_hits")
        usage = stats.num_used_blocks / stats.num_blocks if stats.num_blocks else 0.0
        return (
            f"Engine 000: Avg prompt throughput: {num_prompt / elapsed_s:.1f} tokens/s, "
            f"Avg generation throughput: {num_generation / elapsed_s:.1f} tokens/s, "
            f"Running: {stats.num_running} reqs, Waiting: {stats.num_waiting} reqs, "
            f"{self._memory} KV cache usage: {100 * usage:.1f}%, "
            f"Prefix cache hit rate: {100 * hits / queries if queries else 0.0:.1f}%"
        )

    def next_draft_line(self) -> str | None:
        """Return the line on drafts that were checked since the last call; None if none were.

        The acceptance length counts the token that every check brings anyway, as vLLM's does.
        """
        totals, before = self._totals, self._drafts
        self._drafts = now = _Drafts(
            totals.total("num_draft_checks"), totals.total("num_draft_tokens"), totals.accepted_at()
        )
        num_checks, num_drafts = now.num_checks - before.num_checks, now.num_drafts - before.num_drafts
        if num_checks <= 0:
            return None
        accepted_at = [
            total - earlier for total, earlier in zip_longest(now.accepted_at, before.accepted_at, fillvalue=0)
        ]
        num_accepted = sum(accepted_at)
        by_place = ", ".join(f"{count / num_checks:.3f}" for count in accepted_at)
        return (
            f"SpecDecoding metrics: Mean acceptance length: {1 + num_accepted / num_checks:.2f}, "
            f"Accepted: {num_accepted} tokens, Drafted: {num_drafts:.0f} tokens, "
            f"Per-position acceptance rate: {by_place}, "
            f"Avg Draft acceptance rate: {100 * num_accepted / num_drafts:.1f}%"
        )


class _Drafts(NamedTuple):
    """What had become of drafts at one time; see `StepStats`."""

    num_checks: float = 0.0
    num_drafts: float = 0.0
    accepted_at: tuple[int, ...] = ()
