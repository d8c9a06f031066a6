"""What the fields of the config mean; what is refused stands with the flags, in cli/test_bench.py."""

from __future__ import annotations

from pagewire.frontend.bench.serving.config import BenchServeConfig


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


def test_without_targets_the_one_server_is_compared_under_its_address():
    config = BenchServeConfig(rounds=2)
    assert config.is_comparison
    assert config.targets == (("http://127.0.0.1:8000", "http://127.0.0.1:8000"),)
    assert not BenchServeConfig(max_concurrency=4).is_comparison


def test_a_sweep_sets_one_thing_and_keeps_the_rest():
    config = BenchServeConfig(sweep_concurrency="1, 4", request_rate=3.0)
    assert config.points == ((1, 3.0), (4, 3.0))
    assert BenchServeConfig(sweep_request_rate="2,inf", max_concurrency=8).points == ((8, 2.0), (8, float("inf")))


def test_one_run_of_a_comparison_is_a_plain_run_with_prompts_of_its_own():
    config = BenchServeConfig(target=("a=http://a", "b=http://b/v1"), sweep_concurrency="2,4", rounds=3)
    single = config.single_run(config.targets[1], config.points[1], 5)
    assert not single.is_comparison
    assert (single.server_url, single.max_concurrency, single.dataset.seed) == ("http://b", 4, 5)
