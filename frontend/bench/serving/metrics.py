"""From what was measured of each request to the figures of a run; nothing here waits, sends or prints.

The definitions are those of `vllm bench serve`, so that figures can be put side by side:

    TTFT   from sending a request to its first token
    E2EL   from sending it to its last token
    TPOT   (E2EL - TTFT) / (output tokens - 1), of requests with two or more
    ITL    every gap between two chunks of a stream, of all requests together
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """What was measured of one request; of a failed one only when it was sent and why it failed.

    Attributes:
        num_prompt_tokens: as the server counted them, or as the dataset planned them if it did not say.
        num_output_tokens: as the server counted them, or the number of chunks if it did not say.
        start_s: when it was sent, in seconds since the start of the benchmark.
        ttft_s, latency_s: until its first and its last token, in seconds since it was sent.
        itls_s: the gaps between its chunks in seconds.
        error: why it failed; empty if it succeeded.
    """

    num_prompt_tokens: int
    start_s: float
    num_output_tokens: int = 0
    ttft_s: float = 0.0
    latency_s: float = 0.0
    itls_s: tuple[float, ...] = ()
    text: str = ""
    error: str = ""

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first, in seconds; 0 where there is no second token."""
        return (self.latency_s - self.ttft_s) / (self.num_output_tokens - 1) if self.num_output_tokens > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Distribution:
    """One latency over all requests, in milliseconds; zeros where nothing was measured.

    Attributes:
        std: of the population.
        percentiles: by percentile (99.0), in the order asked for; linear between neighbours.
    """

    mean: float
    median: float
    std: float
    percentiles: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class BenchmarkMetrics:
    """The figures of a run.

    Attributes:
        duration_s: from the first request's turn to the last one's end.
        request_goodput: requests a second that kept every limit; None where no limit was given.
        peak_output_throughput: most output tokens in one second of the run.
        latencies: by "ttft", "tpot", "itl", "e2el".
    """

    duration_s: float
    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    request_goodput: float | None
    peak_output_throughput: float
    peak_concurrent_requests: int
    latencies: Mapping[str, Distribution]

    @property
    def request_throughput(self) -> float:
        """Completed requests a second."""
        return self.completed / self.duration_s

    @property
    def output_throughput(self) -> float:
        """Output tokens a second."""
        return self.total_output_tokens / self.duration_s

    @property
    def total_token_throughput(self) -> float:
        """Prompt and output tokens a second."""
        return (self.total_input_tokens + self.total_output_tokens) / self.duration_s


def summarize(
    outcomes: Iterable[RequestOutcome],
    *,
    duration_s: float,
    percentiles: Sequence[float] = (99.0,),
    limits_ms: Mapping[str, float] | None = None,
) -> BenchmarkMetrics:
    """Return the figures of a run.

    Args:
        outcomes: of every request that was sent.
        duration_s: how long the run took, above 0.
        percentiles: those to compute, from 0 to 100.
        limits_ms: what a good request keeps, by "ttft", "tpot", "e2el"; empty or None for no goodput.
    """
    all_outcomes = list(outcomes)
    done = [outcome for outcome in all_outcomes if not outcome.error]
    samples_s = {
        "ttft": [outcome.ttft_s for outcome in done],
        "tpot": [outcome.tpot_s for outcome in done if outcome.num_output_tokens > 1],
        "itl": [gap for outcome in done for gap in outcome.itls_s],
        "e2el": [outcome.latency_s for outcome in done],
    }
    return BenchmarkMetrics(
        duration_s=duration_s,
        completed=len(done),
        failed=len(all_outcomes) - len(done),
        total_input_tokens=sum(outcome.num_prompt_tokens for outcome in done),
        total_output_tokens=sum(outcome.num_output_tokens for outcome in done),
        request_goodput=sum(is_good(outcome, limits_ms) for outcome in done) / duration_s if limits_ms else None,
        peak_output_throughput=_peak_output_throughput(done, duration_s),
        peak_concurrent_requests=_peak_concurrent_requests(done),
        latencies={name: _distribution(values, percentiles) for name, values in samples_s.items()},
    )


def is_good(outcome: RequestOutcome, limits_ms: Mapping[str, float]) -> bool:
    """Whether a completed request kept every limit."""
    measured_s = {"ttft": outcome.ttft_s, "tpot": outcome.tpot_s, "e2el": outcome.latency_s}
    return all(1000 * measured_s[name] <= limit_ms for name, limit_ms in limits_ms.items())


def _distribution(values_s: Sequence[float], percentiles: Sequence[float]) -> Distribution:
    values = np.array(values_s or [0.0]) * 1000
    return Distribution(
        mean=float(values.mean()),
        median=float(np.median(values)),
        std=float(values.std()),
        percentiles={percentile: float(np.percentile(values, percentile)) for percentile in percentiles},
    )


def _peak_output_throughput(done: Sequence[RequestOutcome], duration_s: float) -> float:
    """Return the most tokens in a second, counted in whole seconds since the start; a shorter run is one window."""
    window_s = min(1.0, duration_s)
    counts = [0.0] * (math.ceil(duration_s / window_s) + 1)
    for outcome in done:
        # A chunk may bring several tokens; the stream does not say how many, so they are spread evenly.
        tokens_per_chunk = outcome.num_output_tokens / (len(outcome.itls_s) + 1)
        at_s = outcome.start_s + outcome.ttft_s
        for gap_s in (0.0, *outcome.itls_s):
            at_s += gap_s
            counts[min(int(at_s / window_s), len(counts) - 1)] += tokens_per_chunk
    return max(counts) / window_s


def _peak_concurrent_requests(done: Sequence[RequestOutcome]) -> int:
    # At equal times an end (-1) sorts before a start, so requests one after the other never count as two.
    changes = sorted(
        [(outcome.start_s, 1) for outcome in done] + [(outcome.start_s + outcome.latency_s, -1) for outcome in done]
    )
    running = peak = 0
    for _, change in changes:
        running += change
        peak = max(peak, running)
    return peak
