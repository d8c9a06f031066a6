"""Saved runs of `bench serve`, be they pagewire's or vLLM's, as what a report shows of them."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pagewire.ipc.errors import ConfigError

Document = dict[str, Any]  # Any: JSON
Points = list[tuple[float, float]]

_NUM_WINDOWS = 120


class Run:
    """One run.

    Args:
        name: what tells it from the others.
        document: with the keys of `bench serve --save-result`; the lists of requests if it was --save-detailed.
    """

    def __init__(self, name: str, document: Document) -> None:
        self.name = name
        self.document = document
        errors = document.get("errors") or []
        kept = [index for index, error in enumerate(errors) if not error]
        starts_s, self._ttfts_s, self._itls_s, self._num_tokens = (
            [values[index] for index in kept] if len(values := document.get(key) or []) == len(errors) else []
            for key in ("start_times", "ttfts", "itls", "output_lens")
        )
        # vLLM gives what its clock said, and nobody knows when that was zero.
        first_s = min(starts_s, default=0.0)
        self._starts_s = [start_s - first_s for start_s in starts_s]

    @property
    def has_details(self) -> bool:
        """Whether there is something to draw."""
        return bool(self._ttfts_s) and len(self._ttfts_s) == len(self._itls_s)

    @property
    def has_times(self) -> bool:
        """Whether it is known when requests were sent."""
        return self.has_details and len(self._starts_s) == len(self._ttfts_s) == len(self._num_tokens)

    def samples_ms(self, metric: str) -> list[float]:
        """Return all values of a latency: ttft, itl or e2el."""
        match metric:
            case "ttft":
                values_s = list(self._ttfts_s)
            case "itl":
                values_s = [gap for gaps in self._itls_s for gap in gaps]
            case _:
                values_s = [first + sum(gaps) for first, gaps in zip(self._ttfts_s, self._itls_s, strict=True)]
        return [1000 * value for value in values_s]

    def concurrency(self) -> Points:
        """Return (seconds, requests under way), a point before and after each change."""
        ends = [
            start + first + sum(gaps)
            for start, first, gaps in zip(self._starts_s, self._ttfts_s, self._itls_s, strict=True)
        ]
        changes = sorted([(start, 1) for start in self._starts_s] + [(end, -1) for end in ends])
        points: Points = [(0.0, 0.0)]
        for at_s, change in changes:
            points += [(at_s, points[-1][1]), (at_s, points[-1][1] + change)]
        return points

    def throughput(self) -> Points:
        """Return (seconds, output tokens a second), averages over windows of equal length."""
        times_s: list[float] = []
        weights: list[float] = []
        rows = zip(self._starts_s, self._ttfts_s, self._itls_s, self._num_tokens, strict=True)
        for start_s, first_s, gaps_s, num_tokens in rows:
            arrivals = start_s + first_s + np.concatenate(([0.0], np.cumsum(gaps_s)))
            times_s.extend(arrivals)
            weights.extend([num_tokens / len(arrivals)] * len(arrivals))  # a chunk may bring several tokens
        duration_s = max(float(self.document.get("duration") or 0.0), max(times_s), 1e-9)
        window_s = max(duration_s / _NUM_WINDOWS, min(1.0, duration_s / 10))
        edges = np.arange(0.0, duration_s + window_s, window_s)
        sums, _ = np.histogram(times_s, bins=edges, weights=weights)
        return [(float(at_s), float(total / window_s)) for at_s, total in zip(edges, sums, strict=False)]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Return the runs of result files, several of a comparison's among them, under names of their own.

    Raises:
        ConfigError: a file can't be read, or is no result.
    """
    return named_runs(pair for path in paths for pair in _runs_of(path))


def named_runs(named: Iterable[tuple[str, Document]]) -> list[Run]:
    """Return runs, names that come again counted."""
    counts: dict[str, int] = {}
    runs = []
    for name, document in named:
        counts[name] = counts.get(name, 0) + 1
        runs.append(Run(name if counts[name] == 1 else f"{name} ({counts[name]})", document))
    return runs


def run_name(document: Document) -> str:
    """Return what tells a run of a comparison from the others: the server, and the load."""
    concurrency, rate = document.get("max_concurrency"), document.get("request_rate")
    load = [] if concurrency is None else [f"{concurrency} at once"]
    load += [] if rate in (None, "inf") else [f"{rate} req/s"]
    return ", ".join([str(document.get("target") or document.get("model_id") or "run"), *load])


def describe_machine() -> str:
    """Return what the load was sent from."""
    return f"{platform.system()} {platform.release()}, {platform.machine()}, Python {platform.python_version()}"


def _runs_of(path: Path) -> Iterator[tuple[str, Document]]:
    try:
        document = msgspec.json.decode(path.read_bytes(), type=Document)
    except OSError as exc:
        raise ConfigError(f"{path} can't be read: {exc.strerror}.") from exc
    except msgspec.DecodeError as exc:
        raise ConfigError(f"{path} is no result of `bench serve --save-result`: {exc}.") from exc
    runs = document.get("runs")
    if runs is None:
        runs = [document]
    if not isinstance(runs, list) or not all(isinstance(run, dict) and "duration" in run for run in runs):
        raise ConfigError(f"{path} is no result of `bench serve --save-result`: it has no duration.")
    for run in runs:
        yield (path.stem if len(runs) == 1 else f"{path.stem}: {run_name(run)}"), run
