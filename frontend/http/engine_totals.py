"""The engine's counters, as one row of numbers that never falls back, whatever restarts."""

from __future__ import annotations

import msgspec

from pagewire.ipc.outputs import CoreKey, StepStats

from ..client.combining import sum_places, sum_stats

_COUNTERS = (
    "num_steps", "num_prompt_tokens", "num_generation_tokens", "prefix_cache_queries", "prefix_cache_hits",
    "num_preemptions", "num_busy_rows", "num_available_rows", "num_executor_restarts", "device_s", "host_gap_s",
    "num_draft_checks", "num_draft_tokens",
)  # fmt: skip


class _CoreTotals:
    """Those of the cores that follow each other at one place."""

    def __init__(self, core: CoreKey) -> None:
        self.core = core
        self.latest = StepStats()
        self.base = StepStats()

    def update(self, stats: StepStats, core: CoreKey) -> None:
        if core != self.core:
            totals = {name: self.total(name) for name in _COUNTERS}
            self.base = msgspec.structs.replace(self.base, **totals, accepted_at=self.accepted_at())
        self.core = core
        self.latest = stats

    def total(self, name: str) -> float:
        total: float = getattr(self.base, name) + getattr(self.latest, name)
        return total

    def accepted_at(self) -> tuple[int, ...]:
        return sum_places([self.base.accepted_at, self.latest.accepted_at])


class EngineTotals:
    """The cores' counters as totals since this process started: they go on where a restarted core begins at zero."""

    def __init__(self) -> None:
        self._cores: dict[int, _CoreTotals] = {}

    @property
    def latest(self) -> StepStats:
        """The last figures of all cores together."""
        return sum_stats([totals.latest for totals in self._cores.values()])

    def update(self, stats: StepStats, core: CoreKey, rank: int = 0) -> bool:
        """Take a core's stats after a step; return whether it is a step that was not known.

        Args:
            stats: its counters count from its own start.
            core: which one they are of.
            rank: its place among the engine's cores.
        """
        totals = self._cores.get(rank)
        if totals is None:
            totals = self._cores[rank] = _CoreTotals(core)
        is_new_step = stats.num_steps != totals.latest.num_steps
        totals.update(stats, core)
        return is_new_step

    def total(self, name: str) -> float:
        """Return the total of a counter of `StepStats`: a whole number, or seconds."""
        return sum(totals.total(name) for totals in self._cores.values())

    def accepted_at(self) -> tuple[int, ...]:
        """Return how many drafts were accepted, by their place among a row's drafts."""
        return sum_places([totals.accepted_at() for totals in self._cores.values()])
