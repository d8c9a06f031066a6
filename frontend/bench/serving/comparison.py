"""Several runs as one table: servers side by side, loads one below the other, medians of the rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from ..text_table import figure, percent, text_table
from .config import BenchServeConfig, LoadPoint, Target
from .metrics import BenchmarkMetrics, RequestOutcome
from .report import result_json
from .server_metrics import INTERVAL_S, ServerState

_HEADER = (
    "server", "load", "output tok/s", "req/s", "TTFT p50", "TTFT p99", "ITL p50", "peak running", "peak KV use",
    "KV filled", "failed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One run of a comparison.

    Attributes:
        config: what the run was told.
        metrics: its figures; they hold the percentiles 50 and 99.
    """

    target: Target
    point: LoadPoint
    round: int
    config: BenchServeConfig
    model: str
    metrics: BenchmarkMetrics
    server: ServerState
    outcomes: Sequence[RequestOutcome]


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """The medians over the rounds of one server under one load; times in milliseconds, None where nothing is known."""

    target: Target
    point: LoadPoint
    num_rounds: int
    output_throughput: float
    request_throughput: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    peak_running: float | None
    peak_kv_use: float | None
    kv_filled: float | None
    num_failed: int

    def cells(self) -> tuple[str, ...]:
        """Return the row as texts, in the order of the header."""
        return (
            self.target.name, self.point.label, figure(self.output_throughput), figure(self.request_throughput, 2),
            figure(self.ttft_p50_ms), figure(self.ttft_p99_ms), figure(self.itl_p50_ms), figure(self.peak_running, 0),
            percent(self.peak_kv_use), percent(self.kv_filled), str(self.num_failed),
        )  # fmt: skip


def compare(runs: Iterable[ComparedRun]) -> list[ComparedRow]:
    """Return a row for each server and load, in the order in which they first ran."""
    groups: dict[tuple[LoadPoint, Target], list[ComparedRun]] = {}
    for run in runs:
        groups.setdefault((run.point, run.target), []).append(run)
    return [_row(group) for group in groups.values()]


def comparison_table(rows: Sequence[ComparedRow]) -> str:
    """Return the table with the line that explains it; the loads have no column where there is only one."""
    lines = [_HEADER, *(row.cells() for row in rows)]
    if len({row.point for row in rows}) <= 1:
        lines = [(line[0], *line[2:]) for line in lines]
    num_rounds = max((row.num_rounds for row in rows), default=0)
    rounds = f"medians of {num_rounds} rounds; " if num_rounds > 1 else ""
    return (
        f"{text_table(lines[0], lines[1:])}\n"
        f"({rounds}times in ms; running and KV as the server's /metrics says, read every {INTERVAL_S:g} s; "
        "KV filled: slots in allocated blocks that hold a token; -: the server does not say)"
    )


def run_line(run: ComparedRun) -> str:
    """Return one line on a run that is over."""
    row = _row([run])
    return (
        f"{run.target.name}, {run.point.label}, round {run.round + 1}: {row.output_throughput:.1f} output tok/s, "
        f"TTFT p50 {row.ttft_p50_ms:.1f} ms, ITL p50 {row.itl_p50_ms:.1f} ms, {row.num_failed} failed"
    )


def comparison_json(
    runs: Sequence[ComparedRun], now: datetime, *, detailed: bool = False
) -> dict[str, Any]:  # Any: JSON
    """Return all runs as they are saved: each as a run of its own, and what tells them apart.

    Args:
        runs: in their order.
        now: the date that the file bears.
        detailed: see `result_json`.
    """
    return {
        "date": f"{now:%Y%m%d-%H%M%S}",
        "runs": [
            {
                "target": run.target.name,
                "round": run.round,
                **result_json(
                    run.metrics, run.config, model=run.model, outcomes=run.outcomes, now=now, detailed=detailed
                ),
                "peak_requests_running": run.server.peak_running,
                "peak_kv_cache_usage": run.server.peak_kv_use,
                "mean_kv_slots_filled": run.server.mean_filled,
            }
            for run in runs
        ],
    }


def _row(runs: Sequence[ComparedRun]) -> ComparedRow:
    def latency(name: str, percentile: float) -> float:
        return median(run.metrics.latencies[name].percentiles[percentile] for run in runs)

    return ComparedRow(
        target=runs[0].target,
        point=runs[0].point,
        num_rounds=len(runs),
        output_throughput=median(run.metrics.output_throughput for run in runs),
        request_throughput=median(run.metrics.request_throughput for run in runs),
        ttft_p50_ms=latency("ttft", 50.0),
        ttft_p99_ms=latency("ttft", 99.0),
        itl_p50_ms=latency("itl", 50.0),
        peak_running=_median_of_known(runs, lambda state: state.peak_running),
        peak_kv_use=_median_of_known(runs, lambda state: state.peak_kv_use),
        kv_filled=_median_of_known(runs, lambda state: state.mean_filled),
        num_failed=sum(run.metrics.failed for run in runs),
    )


def _median_of_known(runs: Sequence[ComparedRun], read: Callable[[ServerState], float | None]) -> float | None:
    known = [value for run in runs if (value := read(run.server)) is not None]
    return median(known) if known else None
