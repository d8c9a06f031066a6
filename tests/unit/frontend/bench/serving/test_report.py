from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from pagewire.frontend.bench.serving.config import BenchServeConfig
from pagewire.frontend.bench.serving.metrics import BenchmarkMetrics, Distribution, RequestOutcome
from pagewire.frontend.bench.serving.report import result_filename, result_json, result_table

METRICS = BenchmarkMetrics(
    duration_s=12.5,
    completed=99,
    failed=1,
    total_input_tokens=20_000,
    total_output_tokens=10_000,
    request_goodput=4.0,
    peak_output_throughput=1234.5,
    peak_concurrent_requests=16,
    latencies={
        name: Distribution(mean=10.0 * place, median=9.0, std=1.5, percentiles={99.0: 30.25, 99.9: 31.0})
        for place, name in enumerate(("ttft", "tpot", "itl", "e2el"), start=1)
    },
)
CONFIG = BenchServeConfig(
    max_concurrency=16, request_rate=8.0, goodput=("ttft:500",), metric_percentiles="99,99.9", save_result=True
)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DONE = RequestOutcome(10, 0.0, num_output_tokens=3, ttft_s=0.1, latency_s=0.5, itls_s=(0.2, 0.2), text="abc")
FAILED = RequestOutcome(7, 1.0, error="HTTP 500: no")

GOLDEN = """\
============ Serving Benchmark Result ============
Successful requests:                     99        
Failed requests:                         1         
Maximum request concurrency:             16        
Request rate configured (RPS):           8.00      
Benchmark duration (s):                  12.50     
Total input tokens:                      20000     
Total generated tokens:                  10000     
Request throughput (req/s):              7.92      
Request goodput (req/s):                 4.00      
Output token throughput (tok/s):         800.00    
Peak output token throughput (tok/s):    1234.50   
Peak concurrent requests:                16.00     
Total token throughput (tok/s):          2400.00   
---------------Time to First Token----------------
Mean TTFT (ms):                          10.00     
Median TTFT (ms):                        9.00      
P99 TTFT (ms):                           30.25     
P99.9 TTFT (ms):                         31.00     
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          20.00     
Median TPOT (ms):                        9.00      
P99 TPOT (ms):                           30.25     
P99.9 TPOT (ms):                         31.00     
---------------Inter-token Latency----------------
Mean ITL (ms):                           30.00     
Median ITL (ms):                         9.00      
P99 ITL (ms):                            30.25     
P99.9 ITL (ms):                          31.00     
----------------End-to-end Latency----------------
Mean E2EL (ms):                          40.00     
Median E2EL (ms):                        9.00      
P99 E2EL (ms):                           30.25     
P99.9 E2EL (ms):                         31.00     
=================================================="""  # noqa: W291 - values are padded, as scripts that parse it expect


def document(config: BenchServeConfig) -> dict[str, object]:
    return result_json(METRICS, config, model="org/m", outcomes=[DONE, FAILED], now=NOW)


def test_the_table_has_the_layout_that_scripts_parse():
    assert result_table(METRICS, CONFIG) == GOLDEN


def test_what_was_not_asked_for_has_no_line():
    metrics = replace(METRICS, request_goodput=None)
    table = result_table(metrics, BenchServeConfig(percentile_metrics="itl"))
    for part in ("concurrency:", "Request rate", "goodput", "Time to First", "End-to-end"):
        assert part not in table
    assert "Inter-token" in table


def test_json_has_the_keys_of_the_field():
    names = ("ttft", "tpot", "itl", "e2el")
    figures = {f"{figure}_{name}_ms" for name in names for figure in ("mean", "median", "std", "p99", "p99.9")}
    assert document(CONFIG).keys() == figures | {
        "date", "endpoint_type", "backend", "base_url", "model_id", "dataset_name", "seed", "num_prompts",
        "request_rate", "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens",
        "total_output_tokens", "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
        "max_output_tokens_per_s", "max_concurrent_requests",
    }  # fmt: skip


def test_json_has_the_figures():
    found = document(CONFIG)
    assert found["date"] == "20260102-030405"
    assert (found["completed"], found["failed"], found["duration"]) == (99, 1, 12.5)
    assert (found["request_throughput"], found["output_throughput"]) == (7.92, 800.0)
    assert (found["mean_e2el_ms"], found["p99.9_itl_ms"]) == (40.0, 31.0)


def test_json_knows_no_infinity():
    found = document(BenchServeConfig(burstiness=math.inf))
    assert (found["request_rate"], found["burstiness"]) == ("inf", "inf")
    assert msgspec.json.decode(msgspec.json.encode(found)) == found


def test_details_list_every_request_failed_ones_too():
    found = document(msgspec.structs.replace(CONFIG, save_detailed=True))
    assert found["input_lens"] == [10, 7]
    assert found["output_lens"] == [3, 0]
    assert found["ttfts"] == [0.1, 0.0]
    assert found["itls"] == [[0.2, 0.2], []]
    assert found["start_times"] == [0.0, 1.0]
    assert found["generated_texts"] == ["abc", ""]
    assert found["errors"] == ["", "HTTP 500: no"]


def test_the_file_is_named_after_the_run():
    assert result_filename(CONFIG, model="org/m", now=NOW) == "openai-8.0qps-concurrency16-m-20260102-030405.json"
    assert result_filename(BenchServeConfig(), model="/models/m/", now=NOW) == "openai-infqps-m-20260102-030405.json"
    named = BenchServeConfig(save_result=True, result_filename="x.json")
    assert result_filename(named, model="m", now=NOW) == "x.json"
