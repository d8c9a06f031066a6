"""What the fields of the config mean; what is refused stands with the flags, in cli/test_bench.py."""

from __future__ import annotations

from pagewire.frontend.bench.config import BenchServeConfig


def test_addresses_and_paths_are_joined():
    assert BenchServeConfig().request_url == "http://127.0.0.1:8000/v1/completions"
    assert BenchServeConfig(host="::1", port=1).server_url == "http://[::1]:1"
    assert BenchServeConfig(backend="openai-chat").request_url.endswith(":8000/v1/chat/completions")
    assert BenchServeConfig(base_url="https://x/api/v1/").request_url == "https://x/api/v1/completions"
    assert BenchServeConfig(base_url="https://x", endpoint="openai/completions").request_url == (
        "https://x/openai/completions"
    )


def test_metrics_keep_the_order_of_the_table():
    assert BenchServeConfig(percentile_metrics="e2el, TTFT,ttft").metrics == ("ttft", "e2el")


def test_percentiles_keep_the_order_asked_for():
    assert BenchServeConfig(metric_percentiles="99,50, 99.9,50").percentiles == (99.0, 50.0, 99.9)


def test_limits_are_by_metric():
    assert BenchServeConfig(goodput=("ttft:500", "e2el:1e3")).limits_ms == {"ttft": 500.0, "e2el": 1000.0}
