"""The engine's counters, as one row of numbers that never falls back, whatever restarts."""

from __future__ import annotations

from collections.abc import Iterable

from pagewire.ipc.outputs import CoreKey, StepStats

from ..client.combining import sum_places, sum_stats
from .figures import CoreFigures


class EngineTotals:
    """The cores' counters as totals since this process started: they go on where a restarted core begins at zero.

    The last figures of each core that there was are kept: a few hundred bytes for each death of one.
    """

    def __init__(self) -> None:
        self._stats: dict[tuple[int, CoreKey], StepStats] = {}
        self._current: dict[int, CoreKey] = {}

    @property
    def latest(self) -> StepStats:
        """The last figures of all cores together."""
        return sum_stats([self._stats[place] for place in self._current.items()])

    @property
    def cores(self) -> list[CoreFigures]:
        """What is known of each core, for `learn`."""
        return [CoreFigures(rank, core, stats) for (rank, core), stats in self._stats.items()]

    def update(self, stats: StepStats, core: CoreKey, rank: int = 0) -> None:
        """Take a core's stats after a step.

        Args:
            stats: its counters count from its own start.
            core: which one they are of.
            rank: its place among the engine's cores.
        """
        self._current[rank] = core
        self._stats[rank, core] = stats

    def learn(self, cores: Iterable[CoreFigures]) -> None:
        """Take what others know: of each core the figures after most steps, and cores that came after those known."""
        for known in cores:
            rank, core = known.rank, known.core
            own = self._stats.get((rank, core))
            if own is None or own.num_steps < known.stats.num_steps:
                self._stats[rank, core] = known.stats
            if _follows(core, self._current.get(rank)):
                self._current[rank] = core

    def total(self, name: str) -> float:
        """Return the total of a counter of `StepStats`: a whole number, or seconds."""
        total: float = sum(getattr(stats, name) for stats in self._stats.values())
        return total

    def accepted_at(self) -> tuple[int, ...]:
        """Return how many drafts were accepted, by their place among a row's drafts."""
        return sum_places([stats.accepted_at for stats in self._stats.values()])

    def step_sizes(self) -> tuple[int, ...]:
        """Return how many steps there were by their tokens, see STEP_SIZES; empty before the first."""
        return sum_places([stats.step_sizes for stats in self._stats.values()])


def _follows(core: CoreKey, known: CoreKey | None) -> bool:
    """Whether a core came after the one that is known of its place; of another engine's nobody can say."""
    return known is None or (core[0] == known[0] and core[1] > known[1])
