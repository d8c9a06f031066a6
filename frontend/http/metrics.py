"""What a frontend counts for /metrics: the core's figures after each step, requests when they end, HTTP answers.

Nothing here runs per token but a bisection; the families are built when someone scrapes (`metric_families`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pagewire.ipc.adapters import Adapter
from pagewire.ipc.outputs import CoreKey, EngineInfo, StepStats

from .engine_totals import EngineTotals
from .figures import Figures, add_figures
from .metric_families import FINISHED_REASONS, REJECTION_REASONS, Families
from .request_record import RequestRecord

# vLLM's buckets: dashboards compute quantiles from them.
_LATENCY_S = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)  # fmt: skip
_TTFT_S = (
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_TOKEN_S = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # fmt: skip
_NUM_CHILDREN = (1, 2, 5, 10, 20)
_NUM_PREEMPTIONS = (0, 1, 2, 5, 10, 20, 50)
_BODY_BYTES = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)


class Metrics(Collector):
    """All figures of one frontend.

    Args:
        model_name: the label of every series.
        info: the engine's facts.
        num_core_restarts: says how often a core had to be started again.
        adapters: says which LoRA adapters there are.
    """

    def __init__(
        self,
        model_name: str,
        info: EngineInfo,
        *,
        num_core_restarts: Callable[[], int] = lambda: 0,
        adapters: Callable[[], tuple[Adapter, ...]] = lambda: (),
    ) -> None:
        self.totals = EngineTotals()
        self._num_core_restarts = num_core_restarts
        self._adapters = adapters
        self._labels = {"model_name": model_name, "engine": "0"}
        self._info = info
        self._figures = figures = Figures()
        for reason in FINISHED_REASONS:
            figures.count("request_success", reason, by=0)
        for reason in REJECTION_REASONS:
            figures.count("admission_rejections", reason, by=0)
        for source in ("local_compute", "local_cache_hit"):
            figures.count("prompt_tokens_by_source", source, by=0)
        tokens = tuple(_one_two_five(info.max_model_len))
        self.time_to_first_token = figures.histogram("time_to_first_token_seconds", bounds=_TTFT_S)
        self.inter_token_latency = figures.histogram("inter_token_latency_seconds", bounds=_TOKEN_S)
        bounds = {
            "e2e_request_latency_seconds": _LATENCY_S,
            "request_queue_time_seconds": _LATENCY_S,
            "request_inference_time_seconds": _LATENCY_S,
            "request_prefill_time_seconds": _LATENCY_S,
            "request_decode_time_seconds": _LATENCY_S,
            "request_time_per_output_token_seconds": _TOKEN_S,
            "request_prompt_tokens": tokens,
            "request_generation_tokens": tokens,
            "request_max_num_generation_tokens": tokens,
            "request_params_n": _NUM_CHILDREN,
            "request_params_max_tokens": tokens,
            "request_num_preemptions": _NUM_PREEMPTIONS,
            "request_prefill_kv_computed_tokens": tokens,
        }
        self._of_requests = {name: figures.histogram(name, bounds=bounds[name]) for name in bounds}

    def step_done(self, rank: int, core: CoreKey, stats: StepStats) -> None:
        """Take a core's stats after a step.

        Args:
            rank: which of the engine's cores; their figures add up.
            core: which of those that follow each other there.
            stats: its own.
        """
        self.totals.update(stats, core, rank)

    def request_done(self, record: RequestRecord) -> None:
        """Count a request that ended, whatever way."""
        for reason in record.finish_reasons:
            self._figures.count("request_success", reason)
        num_computed = record.num_prompt_tokens - record.num_cached_tokens
        if record.first_token_s is not None:
            self._figures.count("prompt_tokens_by_source", "local_cache_hit", by=record.num_cached_tokens)
            self._figures.count("prompt_tokens_by_source", "local_compute", by=num_computed)
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
                self._of_requests[name].observe(value)

    def rejected(self, reason: str) -> None:
        """Count a request that was not taken, though nothing is wrong with it; see REJECTION_REASONS."""
        self._figures.count("admission_rejections", reason)

    def http_done(
        self,
        handler: str,
        method: str,
        status: int,
        duration_s: float,
        request_bytes: int = 0,
        response_bytes: int = 0,
    ) -> None:
        """Count an HTTP answer.

        Args:
            handler: the route's pattern, never the path that a client made up.
            method: GET, POST, ...
            status: of the answer.
            duration_s: from the head to the answer's end.
            request_bytes: of the body, as its head said.
            response_bytes: of the answer's body.
        """
        figures = self._figures
        figures.count("http_requests", handler, method, str(status))
        figures.histogram("http_request_duration_seconds", handler, method, bounds=_LATENCY_S).observe(duration_s)
        figures.histogram("http_request_size_bytes", handler, method, bounds=_BODY_BYTES).observe(request_bytes)
        figures.histogram("http_response_size_bytes", handler, method, bounds=_BODY_BYTES).observe(response_bytes)

    @property
    def figures(self) -> Figures:
        """All that this frontend knows, for others to add up."""
        return msgspec.structs.replace(self._figures, cores=self.totals.cores)

    def collect(self) -> Iterator[Metric]:
        """Build all families of this frontend's own figures; called by a registry for a scrape."""
        return self.families([])

    def families(self, others: list[Figures]) -> Iterator[Metric]:
        """Build all families, of these figures and those of other frontends together.

        What others know of cores is remembered: counters do not fall back when they can't be asked.
        """
        total = add_figures([self.figures, *others])
        self.totals.learn(total.cores)
        families = Families(
            self._labels,
            self._info,
            total,
            self.totals,
            num_core_restarts=self._num_core_restarts(),
            adapters=self._adapters(),
        )
        return families.build()


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
