"""Two looks at /metrics, and what happened between them. Pure functions of text and times.

The names are vLLM's, so that its servers can be watched as well; what a server does not tell is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Buckets = Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Sample:
    """One look.

    Attributes:
        time_s: when, on a clock of which only differences count.
        model: the served model's name.
        values: the sum over all engines by the metric's name without its prefix; labelled ones as "name:label value".
        shares: gauges of a share, of which the highest counts.
        histograms: cumulative counts by upper bound.
    """

    time_s: float
    model: str
    values: Mapping[str, float]
    shares: Mapping[str, float]
    histograms: Mapping[str, Buckets]


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened between two looks; latencies in seconds, None where nothing did.

    Attributes:
        prompt_tokens_s: computed or found, a second.
        output_tokens_s: drawn, a second.
        finished_s: requests a second.
        cache_hits: share of the prompts' tokens that the prefix cache held.
        accepted: share of the drafts' tokens that were taken.
        ttft_s, itl_s, e2e_s: (median, 99th percentile) of the first token, between tokens, of whole requests.
    """

    prompt_tokens_s: float
    output_tokens_s: float
    finished_s: float
    cache_hits: float | None
    accepted: float | None
    ttft_s: tuple[float, float] | None
    itl_s: tuple[float, float] | None
    e2e_s: tuple[float, float] | None


_SHARES = frozenset({"kv_cache_usage_perc", "gpu_cache_usage_perc"})
_BY_LABEL = {"restarts": "process", "request_success": "finished_reason"}
_PREFIXES = ("vllm:", "pagewire:", "pagewire_")


def read_sample(text: str, time_s: float) -> Sample:
    """Return what the text of /metrics says.

    Raises:
        ValueError: it is none.
    """
    values: dict[str, float] = {}
    shares: dict[str, float] = {}
    histograms: dict[str, dict[float, float]] = {}
    model = ""
    for family in text_string_to_metric_families(text):
        name = _short(family.name)
        if name is None:
            continue
        for sample in family.samples:
            model = model or sample.labels.get("model_name", "")
            if name in _SHARES:
                shares[name] = max(shares.get(name, 0.0), sample.value)
            elif family.type == "histogram":
                if sample.name.endswith("_bucket"):
                    counts = histograms.setdefault(name, {})
                    bound = float(sample.labels["le"])
                    counts[bound] = counts.get(bound, 0.0) + sample.value
            elif not sample.name.endswith("_created"):
                label = _BY_LABEL.get(name)
                keys = [name] if label is None else [name, f"{name}:{sample.labels.get(label, '')}"]
                for key in keys:
                    values[key] = values.get(key, 0.0) + sample.value
    return Sample(time_s, model, values, shares, histograms)


def rates_between(earlier: Sample, later: Sample) -> Rates:
    """Return what happened between two looks; a counter that began anew counts from 0."""
    seconds = max(later.time_s - earlier.time_s, 1e-9)

    def grown(name: str) -> float:
        now, then = later.values.get(name, 0.0), earlier.values.get(name, 0.0)
        return now - then if now >= then else now

    def share(part: str, whole: str) -> float | None:
        return grown(part) / grown(whole) if grown(whole) > 0 else None

    def percentiles(*names: str) -> tuple[float, float] | None:
        name = next((each for each in names if each in later.histograms), "")
        buckets = _difference(earlier.histograms.get(name, {}), later.histograms.get(name, {}))
        median, highest = percentile(buckets, 0.5), percentile(buckets, 0.99)
        return None if median is None or highest is None else (median, highest)

    return Rates(
        prompt_tokens_s=grown("prompt_tokens") / seconds,
        output_tokens_s=grown("generation_tokens") / seconds,
        finished_s=grown("request_success") / seconds,
        cache_hits=share("prefix_cache_hits", "prefix_cache_queries"),
        accepted=share("spec_decode_num_accepted_tokens", "spec_decode_num_draft_tokens"),
        ttft_s=percentiles("time_to_first_token_seconds"),
        itl_s=percentiles("inter_token_latency_seconds", "time_per_output_token_seconds"),
        e2e_s=percentiles("e2e_request_latency_seconds"),
    )


def percentile(buckets: Buckets, share: float) -> float | None:
    """Return the value below which a share of the observations lies, even within a bucket; None without any.

    Beyond the last bound it is that bound: the histogram knows no more.
    """
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    wanted, below, count_below = share * total, 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted:
            if math.isinf(bound):
                return below
            width = buckets[bound] - count_below
            return below + (bound - below) * ((wanted - count_below) / width if width else 1.0)
        below, count_below = bound, buckets[bound]
    return below


def _difference(earlier: Buckets, later: Buckets) -> Buckets:
    difference = {bound: count - earlier.get(bound, 0.0) for bound, count in later.items()}
    return later if any(count < 0 for count in difference.values()) else difference  # the server began anew


def _short(name: str) -> str | None:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return None
