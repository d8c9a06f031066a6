"""The engine's counters, as one row of numbers that never falls back, whatever restarts."""

from __future__ import annotations

import msgspec

from pagewire.ipc.outputs import CoreKey, StepStats

_COUNTERS = (
    "num_steps", "num_prompt_tokens", "num_generation_tokens", "prefix_cache_queries", "prefix_cache_hits",
    "num_preemptions", "num_busy_rows", "num_available_rows", "num_executor_restarts", "device_s", "host_gap_s",
)  # fmt: skip


class EngineTotals:
    """The core's counters as totals since this process started: they go on where a restarted core begins at zero."""

    def __init__(self) -> None:
        self.latest = StepStats()
        self._base = StepStats()
        self._core: CoreKey | None = None

    def update(self, stats: StepStats, core: CoreKey) -> None:
        """Take a core's stats after a step.

        Args:
            stats: its counters count from its own start.
            core: which one they are of.
        """
        if self._core is not None and core != self._core:
            self._base = msgspec.structs.replace(self._base, **{name: self.total(name) for name in _COUNTERS})
        self._core = core
        self.latest = stats

    def total(self, name: str) -> float:
        """Return the total of a counter of `StepStats`: a whole number, or seconds."""
        total: float = getattr(self._base, name) + getattr(self.latest, name)
        return total
