"""The figures: vLLM's names, counters that outlive a core, requests counted once."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from pagewire.frontend.http.figures import Histogram
from pagewire.frontend.http.metrics import Metrics
from pagewire.frontend.http.request_record import RequestRecord
from pagewire.ipc.adapters import Adapter
from pagewire.ipc.outputs import StepStats
from tests.support.fake_core import engine_info
from tests.support.http_server import running_server

_DASHBOARD_NAMES = """
    num_requests_running num_requests_waiting kv_cache_usage_perc gpu_cache_usage_perc cache_config_info prompt_tokens
    generation_tokens prompt_tokens_cached prompt_tokens_by_source prefix_cache_queries prefix_cache_hits
    num_preemptions request_success time_to_first_token_seconds inter_token_latency_seconds
    time_per_output_token_seconds request_time_per_output_token_seconds e2e_request_latency_seconds
    request_queue_time_seconds request_inference_time_seconds request_prefill_time_seconds request_decode_time_seconds
    request_prompt_tokens request_generation_tokens request_max_num_generation_tokens request_params_n
    request_params_max_tokens iteration_tokens_total request_num_preemptions request_prefill_kv_computed_tokens
"""
_LABELS = {"model_name": "m", "engine": "0"}
CORE = ("", 1)


def registered(metrics: Metrics) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(metrics)
    return registry


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"vllm:{name}", {**_LABELS, **labels})


def record(**changes) -> RequestRecord:
    fields = {
        "finish_reasons": ("stop",), "num_prompt_tokens": 10, "num_cached_tokens": 4, "num_output_tokens": 5,
        "max_child_output_tokens": 5, "n": 1, "max_tokens": 16, "num_preemptions": 0, "e2e_s": 1.0, "queue_s": 0.1,
        "first_token_s": 0.3, "last_token_s": 0.9,
    }  # fmt: skip
    return RequestRecord(**{**fields, **changes})


def test_histogram_counts_up_to_and_including_a_bound():
    histogram = Histogram((1, 2))
    for number in (0.5, 1, 1.5, 2, 3):
        histogram.observe(number)
    histogram.observe(10, 3)
    assert histogram.buckets() == [("1.0", 2), ("2.0", 4), ("+Inf", 8)]
    assert histogram.sum == 8 + 30


def test_gauges_show_the_last_step_under_both_names():
    metrics = Metrics("m", engine_info())
    metrics.step_done(0, CORE, StepStats(num_steps=1, num_running=3, num_waiting=2, num_blocks=10, num_used_blocks=4))
    registry = registered(metrics)
    assert value(registry, "num_requests_running") == 3
    assert value(registry, "num_requests_waiting") == 2
    assert value(registry, "kv_cache_usage_perc") == 0.4
    assert value(registry, "gpu_cache_usage_perc") == 0.4


@pytest.mark.parametrize(("level", "state"), [(0, "awake"), (1, "weights_offloaded"), (2, "discard_all")])
def test_one_sleep_state_holds(level: int, state: str):
    metrics = Metrics("m", engine_info())
    metrics.step_done(0, CORE, StepStats(sleep_level=level))
    registry = registered(metrics)
    states = ("awake", "weights_offloaded", "discard_all")
    assert [value(registry, "engine_sleep_state", sleep_state=each) for each in states] == [
        float(each == state) for each in states
    ]


def test_restarts_are_counted_by_process_and_go_on_after_those_of_the_core():
    epoch = 1
    metrics = Metrics("m", engine_info(), num_core_restarts=lambda: epoch - 1)
    registry = registered(metrics)

    def restarts(process: str) -> float | None:
        return registry.get_sample_value("pagewire_restarts_total", {**_LABELS, "process": process})

    assert (restarts("core"), restarts("executor")) == (0, 0)
    metrics.step_done(0, ("", epoch), StepStats(num_steps=3, num_executor_restarts=2))
    assert (restarts("core"), restarts("executor")) == (0, 2)
    epoch = 2
    assert (restarts("core"), restarts("executor")) == (1, 2)
    metrics.step_done(0, ("", epoch), StepStats(num_steps=4, num_executor_restarts=0))
    assert (restarts("core"), restarts("executor")) == (1, 2)
    metrics.step_done(0, ("", epoch), StepStats(num_steps=5, num_executor_restarts=1))
    assert (restarts("core"), restarts("executor")) == (1, 3)


def test_time_of_the_device_and_its_gaps_go_on_after_those_of_a_core():
    epoch = 1
    metrics = Metrics("m", engine_info())
    registry = registered(metrics)

    def values() -> list[float | None]:
        names = ("steps", "device_seconds", "host_gap_seconds")
        return [registry.get_sample_value(f"pagewire_{name}_total", _LABELS) for name in names]

    assert values() == [0, 0, 0]
    metrics.step_done(0, ("", epoch), StepStats(num_steps=3, device_s=1.5, host_gap_s=0.25))
    assert values() == [3, 1.5, 0.25]
    epoch = 2
    metrics.step_done(0, ("", epoch), StepStats(num_steps=1, device_s=0.5))
    assert values() == [4, 2.0, 0.25]


def test_drafts_are_counted_by_place_and_go_on_after_a_restart():
    metrics = Metrics("m", engine_info(num_speculative_tokens=3))
    registry = registered(metrics)
    metrics.step_done(0, CORE, StepStats(num_steps=1, num_draft_checks=4, num_draft_tokens=9, accepted_at=(3, 2)))
    metrics.step_done(0, ("", 2), StepStats(num_steps=1, num_draft_checks=1, num_draft_tokens=3, accepted_at=(1, 1, 1)))
    assert value(registry, "spec_decode_num_drafts_total") == 5
    assert value(registry, "spec_decode_num_draft_tokens_total") == 12
    assert value(registry, "spec_decode_num_accepted_tokens_total") == 8
    by_place = [
        value(registry, "spec_decode_num_accepted_tokens_per_pos_total", position=str(place)) for place in range(3)
    ]
    assert by_place == [4, 3, 1]


def test_without_speculation_there_are_no_series_of_it():
    assert value(registered(Metrics("m", engine_info())), "spec_decode_num_drafts_total") is None


def test_request_is_counted_by_reason_and_phase():
    metrics = Metrics("m", engine_info())
    metrics.request_done(record(finish_reasons=("stop", "length"), n=2))
    registry = registered(metrics)
    assert value(registry, "request_success_total", finished_reason="stop") == 1
    assert value(registry, "request_success_total", finished_reason="length") == 1
    assert value(registry, "request_success_total", finished_reason="abort") == 0
    assert value(registry, "prompt_tokens_by_source_total", source="local_compute") == 6
    assert value(registry, "prompt_tokens_cached_total") == 4
    sums = {
        "request_queue_time_seconds": 0.1,
        "request_prefill_time_seconds": 0.2,
        "request_decode_time_seconds": 0.6,
        "request_inference_time_seconds": 0.8,
        "request_time_per_output_token_seconds": 0.15,
        "e2e_request_latency_seconds": 1.0,
        "request_prompt_tokens": 10,
        "request_generation_tokens": 5,
        "request_params_n": 2,
        "request_params_max_tokens": 16,
    }
    for name, total in sums.items():
        assert value(registry, f"{name}_sum") == pytest.approx(total)
        assert value(registry, f"{name}_count") == 1


def test_request_that_never_began_has_no_phases():
    metrics = Metrics("m", engine_info())
    metrics.request_done(record(finish_reasons=("abort",), queue_s=None, first_token_s=None, last_token_s=None))
    registry = registered(metrics)
    assert value(registry, "request_success_total", finished_reason="abort") == 1
    assert value(registry, "request_prefill_time_seconds_count") == 0
    assert value(registry, "prompt_tokens_cached_total") == 0


def test_steps_are_counted_by_the_core_however_often_they_are_reported():
    metrics = Metrics("m", engine_info())
    for _ in range(2):
        metrics.step_done(0, CORE, StepStats(num_steps=1, num_step_tokens=20, step_sizes=(0, 0, 0, 1, *[0] * 10)))
    registry = registered(metrics)
    assert value(registry, "iteration_tokens_total_count") == 1
    assert value(registry, "iteration_tokens_total_sum") == 20
    assert value(registry, "iteration_tokens_total_bucket", le="16.0") == 0
    assert value(registry, "iteration_tokens_total_bucket", le="32.0") == 1


def test_figures_of_other_frontends_are_added_and_the_engine_counts_once():
    metrics, other = Metrics("m", engine_info()), Metrics("m", engine_info())
    metrics.request_done(record())
    other.request_done(record(finish_reasons=("length",)))
    other.http_done("/v1/completions", "POST", 200, 0.4, 77)
    metrics.step_done(0, CORE, StepStats(num_steps=3, num_generation_tokens=30, num_running=1))
    other.step_done(0, CORE, StepStats(num_steps=4, num_generation_tokens=40, num_running=2))
    families = {family.name: family for family in metrics.families([other.figures])}

    def values(name: str) -> list[float]:
        return [sample.value for sample in families[name].samples]

    assert values("vllm:generation_tokens") == [40]
    assert values("vllm:num_requests_running") == [2]
    assert values("vllm:request_success") == [1, 1, 0, 0]
    assert values("http_requests") == [1]
    assert values("http_request_size_bytes")[-2:] == [1, 77]
    assert sum(values("vllm:request_prompt_tokens")[-2:]) == 2 + 20


def test_the_facts_of_the_cache_are_labels():
    info = engine_info(gpu_memory_utilization=0.75)
    facts = {"block_size": "16", "num_gpu_blocks": "0", "num_cpu_blocks": "64", "cache_dtype": "float32"}
    facts |= {"enable_prefix_caching": "True", "gpu_memory_utilization": "0.75"}
    assert value(registered(Metrics("m", info)), "cache_config_info", **facts) == 1


def test_adapters_in_use_are_named_where_there_are_any():
    metrics = Metrics(
        "m",
        engine_info(has_adapters=True, max_loras=4),
        adapters=lambda: (Adapter(name="b", load_id=1, path=""), Adapter(name="a", load_id=2, path="")),
    )
    metrics.step_done(0, CORE, StepStats(running_adapters=(1, 2, 9), waiting_adapters=(2,)))
    metrics.step_done(1, CORE, StepStats(waiting_adapters=(1,)))
    labels = {"max_lora": "4", "waiting_lora_adapters": "a,b", "running_lora_adapters": "a,b"}
    assert value(registered(metrics), "lora_requests_info", **labels) == 1
    assert value(registered(Metrics("m", engine_info())), "lora_requests_info", **labels) is None


async def test_scrape_after_a_load_equals_the_usage_of_its_answers():
    async with running_server("abcdef", num_cached_tokens=1) as server:
        usages = [(await server.complete(prompt="pp", n=2, temperature=1))["usage"] for _ in range(3)]
        assert await server.metric("vllm:request_success_total", finished_reason="stop") == 6
        output_sum = await server.metric("vllm:request_generation_tokens_sum")
        assert output_sum == sum(usage["completion_tokens"] for usage in usages)
        prompt_sum = await server.metric("vllm:request_prompt_tokens_sum")
        assert prompt_sum == sum(usage["prompt_tokens"] for usage in usages)
        assert await server.metric("vllm:time_to_first_token_seconds_count") == 3
        # Every token but each child's first one waited for its predecessor.
        assert await server.metric("vllm:inter_token_latency_seconds_count") <= output_sum - 6
        assert await server.metric("http_requests_total", handler="/v1/completions", status="200") == 3
        assert await server.metric("http_response_size_bytes_sum", handler="/v1/completions") > 300
        streamed = await server.stream_completion()
        assert await server.metric("http_response_size_bytes_sum", handler="/v1/completions") > 300 + 50 * len(streamed)


async def test_scrape_has_every_name_that_dashboards_read():
    async with running_server() as server:
        for path in ("/metrics", "/metrics/"):
            async with server.http.get(path) as response:
                assert response.headers["Content-Type"].startswith("text/plain")
                families = {family.name for family in text_string_to_metric_families(await response.text())}
            assert {f"vllm:{name}" for name in _DASHBOARD_NAMES.split()} <= families
            assert "process_resident_memory_bytes" in families


def test_memory_waste_and_row_use_can_be_read_off_a_scrape():
    info = engine_info()
    metrics = Metrics("m", info)
    metrics.step_done(
        0, CORE, StepStats(
            num_steps=1, num_blocks=10, num_used_blocks=4, num_filled_slots=3 * info.block_size,
            num_busy_rows=19, num_available_rows=20,
        )
    )  # fmt: skip
    registry = registered(metrics)
    assert registry.get_sample_value("pagewire:kv_slots_filled_perc", _LABELS) == 0.75
    assert registry.get_sample_value("pagewire:busy_rows_total", _LABELS) == 19
    assert registry.get_sample_value("pagewire:available_rows_total", _LABELS) == 20
