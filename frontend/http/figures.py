"""What one frontend counts, as values that travel between processes and add up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec

from pagewire.ipc.outputs import CoreKey, StepStats

Key = tuple[str, ...]
"""A family's name without prefix, then the values of its own labels."""


class Histogram(msgspec.Struct):
    """Counts of values by upper bound.

    Attributes:
        bounds: ascending upper bounds, inclusive.
        counts: [len(bounds) + 1], the last one of values above all bounds.
        sum: of all values.
    """

    bounds: tuple[float, ...]
    counts: list[int] = []
    sum: float = 0.0

    def __post_init__(self) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, count: int = 1) -> None:
        """Count `value` so many times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, values up to it), as Prometheus wants them."""
        total = 0
        cumulative: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, map(float, self.bounds)), "+Inf"), self.counts, strict=True):
            total += count
            cumulative.append((bound, total))
        return cumulative

    def add(self, other: Histogram) -> None:
        """Add the counts of another one; of one with other bounds, which another engine brought, nothing."""
        if self.bounds == other.bounds:
            self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
            self.sum += other.sum


class CoreFigures(msgspec.Struct, frozen=True):
    """The last that was heard of a core, be it alive or not.

    Attributes:
        rank: its place among the engine's cores.
    """

    rank: int
    core: CoreKey
    stats: StepStats


class Figures(msgspec.Struct):
    """Counters and histograms of a frontend, and what it knows of the engine's."""

    counters: dict[Key, float] = {}
    histograms: dict[Key, Histogram] = {}
    cores: list[CoreFigures] = []

    def count(self, *key: str, by: float = 1) -> None:
        """Count something up."""
        self.counters[key] = self.counters.get(key, 0) + by

    def histogram(self, *key: str, bounds: Sequence[float]) -> Histogram:
        """Return the histogram of this key, made with these bounds if there is none yet."""
        found = self.histograms.get(key)
        if found is None:
            found = self.histograms[key] = Histogram(tuple(bounds))
        return found


def add_figures(parts: Iterable[Figures]) -> Figures:
    """Return figures that are the sums of all. What is known of cores is put side by side, see `EngineTotals.learn`."""
    total = Figures()
    for part in parts:
        for key, count in part.counters.items():
            total.count(*key, by=count)
        for key, histogram in part.histograms.items():
            total.histogram(*key, bounds=histogram.bounds).add(histogram)
        total.cores = [*total.cores, *part.cores]
    return total
