"""/metrics in Prometheus' text format, with vLLM's names, so that existing dashboards and alerts read it.

What vLLM has no figure for bears our own prefix, pagewire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from pagewire.ipc.adapters import Adapter
from pagewire.ipc.outputs import STEP_SIZES, EngineInfo

from .engine_totals import EngineTotals
from .figures import Figures, Histogram
from .metric_help import HELP

FINISHED_REASONS = ("stop", "length", "abort", "error")
REJECTION_REASONS = ("overloaded", "draining")
FRONTEND_STATES = ("answering", "silent", "restarting")

Samples = Iterable[tuple[dict[str, str], float]]


class Families:
    """All families of one moment.

    Args:
        labels: of every series of the engine.
        info: the engine's facts.
        figures: of all frontends.
        totals: of all cores.
        num_core_restarts: how often a core had to be started again.
        adapters: LoRA adapters that can be asked for.
    """

    def __init__(
        self,
        labels: dict[str, str],
        info: EngineInfo,
        figures: Figures,
        totals: EngineTotals,
        *,
        num_core_restarts: int,
        adapters: Sequence[Adapter],
    ) -> None:
        self._labels = labels
        self._info = info
        self._figures = figures
        self._totals = totals
        self._num_core_restarts = num_core_restarts
        self._adapters = adapters

    def build(self) -> Iterator[Metric]:
        """Return every family, in a fixed order."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()
        yield from self._http()

    def _gauges(self) -> Iterator[Metric]:
        stats = self._totals.latest
        usage = stats.num_used_blocks / stats.num_blocks if stats.num_blocks else 0.0
        yield self._gauge("num_requests_running", stats.num_running)
        yield self._gauge("num_requests_waiting", stats.num_waiting)
        yield self._gauge("num_requests_waiting_by_reason", stats.num_waiting, {"reason": "capacity"})
        yield self._gauge("num_waiting_tokens", stats.num_waiting_tokens, prefix="pagewire")
        yield self._gauge("kv_cache_usage_perc", usage)
        yield self._gauge("gpu_cache_usage_perc", usage)  # its name in older dashboards
        num_used_slots = stats.num_used_blocks * self._info.block_size
        yield self._gauge("kv_slots_filled_perc", stats.num_filled_slots / (num_used_slots or 1), prefix="pagewire")
        states = ("awake", "weights_offloaded", "discard_all")  # vLLM's words for levels 0, 1 and 2
        yield self._gauges_by("engine_sleep_state", "sleep_state", states, states[stats.sleep_level])
        info = self._info
        facts = {
            "block_size": str(info.block_size),
            "num_gpu_blocks": str(0 if info.device == "cpu" else info.num_blocks),
            "num_cpu_blocks": str(info.num_blocks if info.device == "cpu" else 0),
            "cache_dtype": info.kv_cache_dtype,
            "enable_prefix_caching": str(info.enable_prefix_caching),
            "gpu_memory_utilization": str(info.gpu_memory_utilization),
        }
        yield self._gauge("cache_config_info", 1, facts)
        if info.has_adapters:
            yield self._adapters_info()

    def _adapters_info(self) -> Metric:
        """Return which adapters are in use; one that was unloaded meanwhile has no name any more."""
        stats = self._totals.latest

        def names(load_ids: Sequence[int]) -> str:
            return ",".join(sorted(adapter.name for adapter in self._adapters if adapter.load_id in load_ids))

        facts = {
            "max_lora": str(self._info.max_loras),
            "waiting_lora_adapters": names(stats.waiting_adapters),
            "running_lora_adapters": names(stats.running_adapters),
        }
        return self._gauge("lora_requests_info", 1, facts)

    def _counters(self) -> Iterator[Metric]:
        totals, figures = self._totals, self._figures
        yield self._counter("prompt_tokens", [({}, totals.total("num_prompt_tokens"))])
        yield self._counter("generation_tokens", [({}, totals.total("num_generation_tokens"))])
        for name in ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions"):
            yield self._counter(name, [({}, totals.total(name))])
        yield self._counter("busy_rows", [({}, totals.total("num_busy_rows"))], prefix="pagewire")
        yield self._counter("available_rows", [({}, totals.total("num_available_rows"))], prefix="pagewire")
        if self._info.num_speculative_tokens:
            yield from self._drafts()
        for name, field in (("steps", "num_steps"), ("device_seconds", "device_s"), ("host_gap_seconds", "host_gap_s")):
            yield self._counter(name, [({}, totals.total(field))], prefix="pagewire_")
        restarts = (("core", self._num_core_restarts), ("executor", totals.total("num_executor_restarts")))
        yield self._counter("restarts", [({"process": name}, count) for name, count in restarts], prefix="pagewire_")
        cached = figures.counters.get(("prompt_tokens_by_source", "local_cache_hit"), 0)
        yield self._counter("prompt_tokens_cached", [({}, cached)])
        for name, label in (
            ("prompt_tokens_by_source", "source"),
            ("admission_rejections", "reason"),
            ("request_success", "finished_reason"),
        ):
            samples = [({label: key[1]}, count) for key, count in figures.counters.items() if key[0] == name]
            yield self._counter(name, samples)

    def _drafts(self) -> Iterator[Metric]:
        accepted_at = self._totals.accepted_at()
        places = range(max(self._info.num_speculative_tokens, len(accepted_at)))
        at = dict(enumerate(accepted_at))
        yield self._counter("spec_decode_num_drafts", [({}, self._totals.total("num_draft_checks"))])
        yield self._counter("spec_decode_num_draft_tokens", [({}, self._totals.total("num_draft_tokens"))])
        yield self._counter("spec_decode_num_accepted_tokens", [({}, sum(accepted_at))])
        yield self._counter(
            "spec_decode_num_accepted_tokens_per_pos",
            [({"position": str(place)}, at.get(place, 0)) for place in places],
        )

    def _histograms(self) -> Iterator[Metric]:
        histograms = {key[0]: each for key, each in self._figures.histograms.items() if len(key) == 1}
        histograms["time_per_output_token_seconds"] = histograms["inter_token_latency_seconds"]  # before vLLM 0.11
        histograms["iteration_tokens_total"] = Histogram(
            STEP_SIZES, list(self._totals.step_sizes()), self._totals.total("num_step_tokens")
        )
        for name, histogram in histograms.items():
            family = HistogramMetricFamily(f"vllm:{name}", _help(name), labels=list(self._labels))
            family.add_metric(list(self._labels.values()), histogram.buckets(), histogram.sum)
            yield family

    def _http(self) -> Iterator[Metric]:
        labels = ["handler", "method", "status"]
        requests = CounterMetricFamily("http_requests", _help("http_requests"), labels=labels)
        for key, count in self._figures.counters.items():
            if key[0] == "http_requests":
                requests.add_metric(key[1:], count)
        yield requests
        for name in ("http_request_duration_seconds", "http_request_size_bytes", "http_response_size_bytes"):
            family = HistogramMetricFamily(name, _help(name), labels=labels[:2])
            for key, histogram in self._figures.histograms.items():
                if key[0] == name:
                    family.add_metric(key[1:], histogram.buckets(), histogram.sum)
            yield family

    def _gauge(self, name: str, value: float, extra: dict[str, str] | None = None, *, prefix: str = "vllm") -> Metric:
        labels = {**self._labels, **(extra or {})}
        family = GaugeMetricFamily(f"{prefix}:{name}", _help(name), labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def _gauges_by(self, name: str, label: str, values: Sequence[str], current: str) -> Metric:
        """Return a gauge for each of some states, of which one holds."""
        family = GaugeMetricFamily(f"vllm:{name}", _help(name), labels=[*self._labels, label])
        for value in values:
            family.add_metric([*self._labels.values(), value], float(value == current))
        return family

    def _counter(self, name: str, samples: Samples, *, prefix: str = "vllm") -> Metric:
        samples = list(samples)
        separator = "" if prefix.endswith("_") else ":"
        family = CounterMetricFamily(f"{prefix}{separator}{name}", _help(name), labels=[*self._labels, *samples[0][0]])
        for extra, value in samples:
            family.add_metric([*self._labels.values(), *extra.values()], value)
        return family


def _help(name: str) -> str:
    return HELP[name]
