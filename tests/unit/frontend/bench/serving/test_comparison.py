from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from pagewire.frontend.bench.serving.comparison import (
    ComparedRun,
    compare,
    comparison_json,
    comparison_table,
    run_line,
)
from pagewire.frontend.bench.serving.config import BenchServeConfig, LoadPoint, Target
from pagewire.frontend.bench.serving.metrics import BenchmarkMetrics, Distribution
from pagewire.frontend.bench.serving.server_metrics import ServerState

A, B = Target("a", "http://a"), Target("long name", "http://b")
ONE, FOUR = LoadPoint(1, float("inf")), LoadPoint(4, float("inf"))


def run(target: Target, point: LoadPoint = ONE, number: int = 0, tokens: int = 100, **state: object) -> ComparedRun:
    latencies = {
        name: Distribution(mean=1.0, median=2.0, std=0.0, percentiles={50.0: 2.0 * place, 99.0: 9.0 * place})
        for place, name in enumerate(("ttft", "tpot", "itl", "e2el"), start=1)
    }
    metrics = BenchmarkMetrics(
        duration_s=2.0, completed=4, failed=1, total_input_tokens=10, total_output_tokens=tokens, request_goodput=None,
        peak_output_throughput=1.0, peak_concurrent_requests=1, latencies=latencies,
    )  # fmt: skip
    return ComparedRun(target, point, number, BenchServeConfig(), "m", metrics, ServerState(**state), [])


def test_one_load_makes_a_row_a_server_and_unknown_figures_a_dash():
    rows = compare([run(A, peak_running=16.0, peak_kv_use=0.5, filled_shares=[0.9, 1.0]), run(B)])
    table = comparison_table(rows)
    assert table.splitlines()[:3] == [
        "server     output tok/s  req/s  TTFT p50  TTFT p99  ITL p50  peak running  peak KV use  KV filled  failed",
        "a                  50.0   2.00       2.0       9.0      6.0            16        50.0%      95.0%       1",
        "long name          50.0   2.00       2.0       9.0      6.0             -            -          -       1",
    ]
    assert "median" not in table


def test_a_sweep_has_a_column_for_the_load():
    table = comparison_table(compare([run(A, ONE), run(A, FOUR)]))
    assert [line.split()[1:3] for line in table.splitlines()[1:3]] == [["1", "client"], ["4", "clients"]]


def test_rounds_become_medians_and_failures_add_up():
    rows = compare([run(A, number=i, tokens=tokens, peak_running=i) for i, tokens in enumerate((100, 700, 300))])
    (row,) = rows
    assert (row.output_throughput, row.peak_running, row.num_failed) == (150.0, 1, 3)
    assert "medians of 3 rounds" in comparison_table(rows)


def test_a_round_in_which_a_server_said_nothing_is_passed_over():
    (row,) = compare([run(A, peak_running=3.0), run(A, number=1)])
    assert row.peak_running == 3.0


def test_a_run_is_told_when_it_ends():
    assert run_line(run(A, number=1)) == (
        "a, 1 client, round 2: 50.0 output tok/s, TTFT p50 2.0 ms, ITL p50 6.0 ms, 1 failed"
    )


def test_all_runs_are_saved_with_what_tells_them_apart():
    runs = [run(A), replace(run(B, peak_running=2.0), round=1)]
    document = comparison_json(runs, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert document["date"] == "20260102-030405"
    assert [(one["target"], one["round"]) for one in document["runs"]] == [("a", 0), ("long name", 1)]
    assert document["runs"][1]["peak_requests_running"] == 2.0
    assert document["runs"][0]["mean_kv_slots_filled"] is None
    assert document["runs"][0]["p50_ttft_ms"] == 2.0


def test_loads_are_named_by_what_they_set():
    assert LoadPoint(None, float("inf")).label == "all at once"
    assert LoadPoint(None, 2.5).label == "2.5 req/s"
    assert LoadPoint(3, 4.0).label == "3 clients, 4 req/s"
