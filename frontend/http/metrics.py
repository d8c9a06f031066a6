"""/metrics in Prometheus' text format, with vLLM's names, so that existing dashboards and alerts read it.

What vLLM has no figure for bears our own prefix, pagewire.

Nothing here runs per token but a bisection: the core's state arrives as one `StepStats` a step, requests report
themselves when they end, and the families are built when someone scrapes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pagewire.ipc.outputs import CoreKey, EngineInfo, StepStats

from .engine_totals import EngineTotals
from .metric_help import HELP

# vLLM's buckets: dashboards compute quantiles from them.
_LATENCY_S = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)  # fmt: skip
_TTFT_S = (
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_TOKEN_S = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # fmt: skip
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_NUM_CHILDREN = (1, 2, 5, 10, 20)
_NUM_PREEMPTIONS = (0, 1, 2, 5, 10, 20, 50)

FINISHED_REASONS = ("stop", "length", "abort", "error")
REJECTION_REASONS = ("overloaded", "draining")


class Histogram:
    """Counts of values by upper bound.

    Args:
        bounds: ascending upper bounds, inclusive.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count `value` so many times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, values up to it), as Prometheus wants them."""
        total = 0
        cumulative: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, map(float, self._bounds)), "+Inf"), self._counts, strict=True):
            total += count
            cumulative.append((bound, total))
        return cumulative

    @property
    def sum(self) -> float:
        """The sum of all values."""
        return self._sum


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What an ended request leaves behind. Times are in seconds; None where it never got so far.

    Attributes:
        finish_reasons: one per child: stop, length, abort or error.
        max_tokens: as asked for.
        queue_s: from the core's receipt to its first schedule.
        first_token_s: from arrival to the first token; last_token_s: to the last.
    """

    finish_reasons: tuple[str, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    max_child_output_tokens: int
    n: int
    max_tokens: int | None
    num_preemptions: int
    e2e_s: float
    queue_s: float | None
    first_token_s: float | None
    last_token_s: float | None


class Metrics(Collector):
    """All figures of one frontend.

    Args:
        model_name: the label of every series.
        info: the engine's facts.
        num_core_restarts: says how often a core had to be started again.
    """

    def __init__(
        self,
        model_name: str,
        info: EngineInfo,
        *,
        num_core_restarts: Callable[[], int] = lambda: 0,
    ) -> None:
        self.totals = EngineTotals()
        self._num_core_restarts = num_core_restarts
        self._labels = {"model_name": model_name, "engine": "0"}
        self._info = info
        self._finished = dict.fromkeys(FINISHED_REASONS, 0)
        self._rejections = dict.fromkeys(REJECTION_REASONS, 0)
        self._num_prompt_tokens_cached = 0
        self._num_prompt_tokens_computed = 0
        self._http: dict[tuple[str, str, str], int] = {}
        self._http_s: dict[tuple[str, str], Histogram] = {}
        tokens = tuple(_one_two_five(info.max_model_len))
        self.time_to_first_token = Histogram(_TTFT_S)
        self.inter_token_latency = Histogram(_TOKEN_S)
        self._iteration_tokens = Histogram(_STEP_TOKENS)
        self._request_histograms = {
            "e2e_request_latency_seconds": Histogram(_LATENCY_S),
            "request_queue_time_seconds": Histogram(_LATENCY_S),
            "request_inference_time_seconds": Histogram(_LATENCY_S),
            "request_prefill_time_seconds": Histogram(_LATENCY_S),
            "request_decode_time_seconds": Histogram(_LATENCY_S),
            "request_time_per_output_token_seconds": Histogram(_TOKEN_S),
            "request_prompt_tokens": Histogram(tokens),
            "request_generation_tokens": Histogram(tokens),
            "request_max_num_generation_tokens": Histogram(tokens),
            "request_params_n": Histogram(_NUM_CHILDREN),
            "request_params_max_tokens": Histogram(tokens),
            "request_num_preemptions": Histogram(_NUM_PREEMPTIONS),
            "request_prefill_kv_computed_tokens": Histogram(tokens),
        }

    def step_done(self, rank: int, core: CoreKey, stats: StepStats) -> None:
        """Take a core's stats after a step.

        Args:
            rank: which of the engine's cores; their figures add up.
            core: which of those that follow each other there.
            stats: its own.
        """
        is_new_step = self.totals.update(stats, core, rank)
        if is_new_step and stats.num_scheduled_tokens:
            self._iteration_tokens.observe(stats.num_scheduled_tokens)

    def request_done(self, record: RequestRecord) -> None:
        """Count a request that ended, whatever way."""
        for reason in record.finish_reasons:
            self._finished[reason] = self._finished.get(reason, 0) + 1
        num_computed = record.num_prompt_tokens - record.num_cached_tokens
        if record.first_token_s is not None:
            self._num_prompt_tokens_cached += record.num_cached_tokens
            self._num_prompt_tokens_computed += num_computed
        values: dict[str, float | None] = {
            "e2e_request_latency_seconds": record.e2e_s,
            "request_prompt_tokens": record.num_prompt_tokens,
            "request_generation_tokens": record.num_output_tokens,
            "request_max_num_generation_tokens": record.max_child_output_tokens,
            "request_params_n": record.n,
            "request_params_max_tokens": record.max_tokens,
            "request_num_preemptions": record.num_preemptions,
            **_phases(record, num_computed),
        }
        for name, value in values.items():
            if value is not None:
                self._request_histograms[name].observe(value)

    def rejected(self, reason: str) -> None:
        """Count a request that was not taken, though nothing is wrong with it; see REJECTION_REASONS."""
        self._rejections[reason] += 1

    def http_done(self, handler: str, method: str, status: int, duration_s: float) -> None:
        """Count an HTTP answer. `handler` is the route's pattern, never the path that a client made up."""
        key = (handler, method, str(status))
        self._http[key] = self._http.get(key, 0) + 1
        self._http_s.setdefault((handler, method), Histogram(_LATENCY_S)).observe(duration_s)

    def collect(self) -> Iterator[Metric]:
        """Build all families; called by the registry for a scrape."""
        yield from self._gauges()
        yield from self._counters()
        histograms = {
            "time_to_first_token_seconds": self.time_to_first_token,
            "inter_token_latency_seconds": self.inter_token_latency,
            "time_per_output_token_seconds": self.inter_token_latency,  # its name before vLLM 0.11
            "iteration_tokens_total": self._iteration_tokens,
            **self._request_histograms,
        }
        for name, histogram in histograms.items():
            family = HistogramMetricFamily(f"vllm:{name}", _help(name), labels=list(self._labels))
            family.add_metric(list(self._labels.values()), histogram.buckets(), histogram.sum)
            yield family
        yield from self._http_families()

    def _gauges(self) -> Iterator[Metric]:
        stats = self.totals.latest
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
        }
        yield self._gauge("cache_config_info", 1, facts)

    def _counters(self) -> Iterator[Metric]:
        totals = self.totals
        yield self._counter("prompt_tokens", [({}, totals.total("num_prompt_tokens"))])
        yield self._counter("generation_tokens", [({}, totals.total("num_generation_tokens"))])
        yield self._counter("prefix_cache_queries", [({}, totals.total("prefix_cache_queries"))])
        yield self._counter("prefix_cache_hits", [({}, totals.total("prefix_cache_hits"))])
        yield self._counter("num_preemptions", [({}, totals.total("num_preemptions"))])
        yield self._counter("busy_rows", [({}, totals.total("num_busy_rows"))], prefix="pagewire")
        yield self._counter("available_rows", [({}, totals.total("num_available_rows"))], prefix="pagewire")
        if self._info.num_speculative_tokens:
            yield from self._drafts()
        yield from self._step_times()
        yield self._restarts()
        yield self._counter("prompt_tokens_cached", [({}, self._num_prompt_tokens_cached)])
        yield self._counter(
            "prompt_tokens_by_source",
            [
                ({"source": "local_compute"}, self._num_prompt_tokens_computed),
                ({"source": "local_cache_hit"}, self._num_prompt_tokens_cached),
            ],
        )
        yield self._counter(
            "admission_rejections", [({"reason": reason}, count) for reason, count in self._rejections.items()]
        )
        yield self._counter(
            "request_success", [({"finished_reason": reason}, count) for reason, count in self._finished.items()]
        )

    def _drafts(self) -> Iterator[Metric]:
        accepted_at = self.totals.accepted_at()
        places = range(max(self._info.num_speculative_tokens, len(accepted_at)))
        at = dict(enumerate(accepted_at))
        yield self._counter("spec_decode_num_drafts", [({}, self.totals.total("num_draft_checks"))])
        yield self._counter("spec_decode_num_draft_tokens", [({}, self.totals.total("num_draft_tokens"))])
        yield self._counter("spec_decode_num_accepted_tokens", [({}, sum(accepted_at))])
        yield self._counter(
            "spec_decode_num_accepted_tokens_per_pos",
            [({"position": str(place)}, at.get(place, 0)) for place in places],
        )

    def _step_times(self) -> Iterator[Metric]:
        for name, counter in (
            ("steps", "num_steps"),
            ("device_seconds", "device_s"),
            ("host_gap_seconds", "host_gap_s"),
        ):
            family = CounterMetricFamily(f"pagewire_{name}", _help(name), labels=list(self._labels))
            family.add_metric(list(self._labels.values()), self.totals.total(counter))
            yield family

    def _restarts(self) -> Metric:
        family = CounterMetricFamily("pagewire_restarts", _help("restarts"), labels=[*self._labels, "process"])
        for process, count in (
            ("core", self._num_core_restarts()),
            ("executor", self.totals.total("num_executor_restarts")),
        ):
            family.add_metric([*self._labels.values(), process], count)
        return family

    def _http_families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "http_requests", "HTTP answers by route, method and status.", labels=["handler", "method", "status"]
        )
        for key, count in self._http.items():
            requests.add_metric(list(key), count)
        yield requests
        durations = HistogramMetricFamily(
            "http_request_duration_seconds", "From a request's head to its answer's end.", labels=["handler", "method"]
        )
        for route, histogram in self._http_s.items():
            durations.add_metric(list(route), histogram.buckets(), histogram.sum)
        yield durations

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

    def _counter(self, name: str, samples: Iterable[tuple[dict[str, str], float]], *, prefix: str = "vllm") -> Metric:
        samples = list(samples)
        family = CounterMetricFamily(f"{prefix}:{name}", _help(name), labels=[*self._labels, *samples[0][0]])
        for extra, value in samples:
            family.add_metric([*self._labels.values(), *extra.values()], value)
        return family


def _phases(record: RequestRecord, num_computed: int) -> dict[str, float | None]:
    """Return the parts of a request's time: queue -> prefill -> decode; the last two are inference."""
    queue, first, last = record.queue_s, record.first_token_s, record.last_token_s
    if queue is None or first is None or last is None:
        return {}
    num_later_tokens = record.max_child_output_tokens - 1
    return {
        "request_queue_time_seconds": queue,
        "request_prefill_time_seconds": max(first - queue, 0.0),
        "request_decode_time_seconds": last - first,
        "request_inference_time_seconds": max(last - queue, 0.0),
        "request_time_per_output_token_seconds": (last - first) / num_later_tokens if num_later_tokens > 0 else None,
        "request_prefill_kv_computed_tokens": num_computed,
    }


def _one_two_five(limit: int) -> Iterator[int]:
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power > limit:
                return
            yield factor * power
        power *= 10


def _help(name: str) -> str:
    return HELP.get(name, name.replace("_", " ").capitalize() + ".")
