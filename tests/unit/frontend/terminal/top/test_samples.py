from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from pagewire.frontend.terminal.top.samples import percentile, rates_between, read_sample
from pagewire.frontend.terminal.top.view import Frame, draw, spark


def metrics(tokens: float, hits: float = 0, queries: float = 0, fast: float = 0, slow: float = 0) -> str:
    label = 'model_name="m",engine="0"'
    return (
        "# TYPE vllm:num_requests_running gauge\n"
        f"vllm:num_requests_running{{{label}}} 3\n"
        f'vllm:num_requests_running{{model_name="m",engine="1"}} 2\n'
        "# TYPE vllm:kv_cache_usage_perc gauge\n"
        f"vllm:kv_cache_usage_perc{{{label}}} 0.25\n"
        "# TYPE vllm:generation_tokens_total counter\n"
        f"vllm:generation_tokens_total{{{label}}} {tokens}\n"
        "# TYPE vllm:prefix_cache_queries_total counter\n"
        f"vllm:prefix_cache_queries_total{{{label}}} {queries}\n"
        "# TYPE vllm:prefix_cache_hits_total counter\n"
        f"vllm:prefix_cache_hits_total{{{label}}} {hits}\n"
        "# TYPE pagewire_restarts_total counter\n"
        f'pagewire_restarts_total{{{label},process="core"}} 1\n'
        f'pagewire_restarts_total{{{label},process="executor"}} 0\n'
        "# TYPE vllm:time_to_first_token_seconds histogram\n"
        f'vllm:time_to_first_token_seconds_bucket{{{label},le="0.1"}} {fast}\n'
        f'vllm:time_to_first_token_seconds_bucket{{{label},le="1.0"}} {fast + slow}\n'
        f'vllm:time_to_first_token_seconds_bucket{{{label},le="+Inf"}} {fast + slow}\n'
        f"vllm:time_to_first_token_seconds_count{{{label}}} {fast + slow}\n"
        f"vllm:time_to_first_token_seconds_sum{{{label}}} 1\n"
        "# TYPE python_info gauge\npython_info 1\n"
    )


def test_a_sample_adds_up_the_engines():
    sample = read_sample(metrics(10), 0.0)
    assert sample.model == "m"
    assert sample.values["num_requests_running"] == 5
    assert sample.values["restarts:core"] == 1
    assert sample.shares == {"kv_cache_usage_perc": 0.25}
    assert "python_info" not in sample.values


def test_rates_are_what_happened_between_two_looks():
    rates = rates_between(read_sample(metrics(100), 10.0), read_sample(metrics(300, 5, 20, 98, 2), 12.0))
    assert rates.output_tokens_s == 100
    assert rates.cache_hits == 0.25
    assert rates.accepted is None
    assert rates.ttft_s is not None
    median, highest = rates.ttft_s
    assert median < 0.1 < highest < 1.0
    assert rates.itl_s is None


def test_a_counter_that_began_anew_counts_from_nothing():
    rates = rates_between(read_sample(metrics(300, fast=9), 0.0), read_sample(metrics(50, fast=1), 1.0))
    assert rates.output_tokens_s == 50
    assert rates.ttft_s is not None


@pytest.mark.parametrize(
    ("buckets", "share", "value"),
    [
        ({}, 0.5, None),
        ({1.0: 0.0}, 0.5, None),
        ({1.0: 4.0, 2.0: 4.0}, 0.5, 0.5),
        ({1.0: 0.0, 2.0: 4.0}, 0.5, 1.5),
        ({1.0: 0.0, math.inf: 4.0}, 0.5, 1.0),
    ],
)
def test_percentiles_lie_within_their_bucket(buckets: dict[float, float], share: float, value: float | None):
    assert percentile(buckets, share) == value


def test_a_frame_fits_a_narrow_terminal():
    earlier, later = read_sample(metrics(100), 10.0), read_sample(metrics(300, 5, 20, 98, 2), 12.0)
    rates = rates_between(earlier, later)
    console = Console(file=io.StringIO(), width=60)
    console.print(draw(Frame("http://h:1", later, rates, rates, [0, 50, 100], fault="gone")))
    text = console.file.getvalue()
    for part in ("m at http://h:1", "5 running", "25.0%", "100 output", "1 restarts of cores", "gone", "▁▅█"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 60


def test_a_curve_is_as_high_as_its_highest_value():
    assert spark([0, 1, 2]) == "▁▅█"
    assert spark([0, 0]) == "▁▁"
    assert spark([]) == ""
