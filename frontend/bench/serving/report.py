"""The printed table and the JSON of a run, in the layout and with the keys of `vllm bench serve`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from .config import BenchServeConfig
from .metrics import BenchmarkMetrics, RequestOutcome

_WIDTH = 50
_TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


def result_table(metrics: BenchmarkMetrics, config: BenchServeConfig) -> str:
    """Return the table of a run: 50 columns, labels padded to 40, no line end after the last line."""
    lines = [
        f"{' Serving Benchmark Result ':=^{_WIDTH}}",
        *(f"{label:<40} {value:<10}" for label, value in _rows(metrics, config)),
    ]
    for name in config.metrics:
        latency, word = metrics.latencies[name], name.upper()
        figures = [("Mean", latency.mean), ("Median", latency.median)]
        figures += [(f"P{_digits(percentile)}", value) for percentile, value in latency.percentiles.items()]
        lines.append(f"{_TITLES[name]:-^{_WIDTH}}")
        lines += [f"{f'{figure} {word} (ms):':<40} {value:<10.2f}" for figure, value in figures]
    return "\n".join([*lines, "=" * _WIDTH])


def _rows(metrics: BenchmarkMetrics, config: BenchServeConfig) -> Iterator[tuple[str, str]]:
    yield "Successful requests:", str(metrics.completed)
    yield "Failed requests:", str(metrics.failed)
    if config.max_concurrency is not None:
        yield "Maximum request concurrency:", str(config.max_concurrency)
    if math.isfinite(config.request_rate):
        yield "Request rate configured (RPS):", f"{config.request_rate:.2f}"
    yield "Benchmark duration (s):", f"{metrics.duration_s:.2f}"
    yield "Total input tokens:", str(metrics.total_input_tokens)
    yield "Total generated tokens:", str(metrics.total_output_tokens)
    yield "Request throughput (req/s):", f"{metrics.request_throughput:.2f}"
    if metrics.request_goodput is not None:
        yield "Request goodput (req/s):", f"{metrics.request_goodput:.2f}"
    yield "Output token throughput (tok/s):", f"{metrics.output_throughput:.2f}"
    yield "Peak output token throughput (tok/s):", f"{metrics.peak_output_throughput:.2f}"
    yield "Peak concurrent requests:", f"{metrics.peak_concurrent_requests:.2f}"
    yield "Total token throughput (tok/s):", f"{metrics.total_token_throughput:.2f}"


def result_json(
    metrics: BenchmarkMetrics,
    config: BenchServeConfig,
    *,
    model: str,
    outcomes: Sequence[RequestOutcome],
    now: datetime,
    detailed: bool = False,
) -> dict[str, Any]:  # Any: JSON
    """Return the run as it is saved; the lists of single requests, in the dataset's order, only if asked for.

    Args:
        metrics: the figures.
        config: what was asked for.
        model: the name that requests asked for.
        outcomes: of every request; `start_times`, `ttfts` and `itls` are in seconds.
        now: the date that the file bears.
        detailed: give the lists whether they are asked for or not.
    """
    result: dict[str, Any] = {  # Any: JSON
        "date": f"{now:%Y%m%d-%H%M%S}",
        "endpoint_type": config.backend,
        "backend": config.backend,
        "base_url": config.server_url,
        "model_id": model,
        "dataset_name": config.dataset.dataset_name,
        "seed": config.dataset.seed,
        "num_prompts": config.dataset.num_prompts,
        "request_rate": _finite_or_text(config.request_rate),
        "burstiness": _finite_or_text(config.burstiness),
        "max_concurrency": config.max_concurrency,
        "duration": metrics.duration_s,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.total_input_tokens,
        "total_output_tokens": metrics.total_output_tokens,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.request_goodput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_token_throughput,
        "max_output_tokens_per_s": metrics.peak_output_throughput,
        "max_concurrent_requests": metrics.peak_concurrent_requests,
    }
    for name in config.metrics:
        latency = metrics.latencies[name]
        result |= {f"mean_{name}_ms": latency.mean, f"median_{name}_ms": latency.median, f"std_{name}_ms": latency.std}
        result |= {f"p{_digits(percentile)}_{name}_ms": value for percentile, value in latency.percentiles.items()}
    return result | (_details(outcomes) if config.save_detailed or detailed else {})


def _details(outcomes: Sequence[RequestOutcome]) -> dict[str, Any]:  # Any: JSON
    return {
        "input_lens": [outcome.num_prompt_tokens for outcome in outcomes],
        "output_lens": [outcome.num_output_tokens for outcome in outcomes],
        "ttfts": [outcome.ttft_s for outcome in outcomes],
        "itls": [list(outcome.itls_s) for outcome in outcomes],
        "start_times": [outcome.start_s for outcome in outcomes],
        "generated_texts": [outcome.text for outcome in outcomes],
        "errors": [outcome.error for outcome in outcomes],
    }


def result_filename(config: BenchServeConfig, *, model: str, now: datetime) -> str:
    """Return the name of the JSON file: the one asked for, or one made of the run."""
    if config.result_filename is not None:
        return config.result_filename
    concurrency = "" if config.max_concurrency is None else f"-concurrency{config.max_concurrency}"
    base_model = model.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return f"{config.backend}-{config.request_rate}qps{concurrency}-{base_model}-{now:%Y%m%d-%H%M%S}.json"


def comparison_filename(config: BenchServeConfig, *, now: datetime) -> str:
    """Return the name of a comparison's JSON file: the one asked for, or one made of the date."""
    return config.result_filename or f"{config.backend}-comparison-{now:%Y%m%d-%H%M%S}.json"


def _digits(percentile: float) -> str:
    """Return a percentile as keys and labels have it: 99, 99.9."""
    return str(int(percentile)) if percentile == int(percentile) else str(percentile)


def _finite_or_text(value: float) -> float | str:
    """Return the number, or "inf", which JSON has no number for."""
    return value if math.isfinite(value) else str(value)
