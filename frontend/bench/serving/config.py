"""What `pagewire bench serve` can be told: names and defaults are those of `vllm bench serve`.

As in `pagewire.ipc.config`, the flags are made from these fields. They live here since no other process reads them.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from pagewire.ipc.errors import ConfigError

from ..dataset.config import DatasetConfig

Backend = Literal["openai", "openai-chat", "vllm"]

METRICS = ("ttft", "tpot", "itl", "e2el")
_SLO_METRICS = ("ttft", "tpot", "e2el")
_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"

Count = Annotated[int, Meta(ge=0)]


class Target(NamedTuple):
    """One of several servers to put side by side."""

    name: str
    url: str


class LoadPoint(NamedTuple):
    """One setting of a sweep."""

    max_concurrency: int | None
    request_rate: float

    @property
    def label(self) -> str:
        """As tables and plots show it."""
        rate = "" if math.isinf(self.request_rate) else f"{self.request_rate:g} req/s"
        plural = "" if self.max_concurrency == 1 else "s"
        clients = "" if self.max_concurrency is None else f"{self.max_concurrency} client{plural}"
        return ", ".join(part for part in (clients, rate) if part) or "all at once"


class BenchServeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Load on a server, and what is measured."""

    dataset: DatasetConfig = DatasetConfig()
    backend: Annotated[Backend, Meta(description="openai and vllm: completions; openai-chat: chat completions.")] = (
        "openai"
    )
    base_url: Annotated[
        str | None, Meta(description="The server, like https://host:8000, instead of host and port.")
    ] = None
    host: Annotated[str, Meta(description="The server's host.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535, description="The server's port.")] = 8000
    target: Annotated[
        tuple[str, ...],
        Meta(description="NAME=URL instead of base-url; several are measured in turn and share one table."),
    ] = ()
    endpoint: Annotated[
        str | None, Meta(description=f"Path of the requests. Default: {_COMPLETIONS}, or {_CHAT} for openai-chat.")
    ] = None
    model: Annotated[str | None, Meta(description="Name to ask for. Default: the first that /v1/models lists.")] = None
    api_key: Annotated[
        str | None, Meta(description="Bearer key to send. Default: PAGEWIRE_API_KEY, VLLM_API_KEY or OPENAI_API_KEY.")
    ] = None

    request_rate: Annotated[float, Meta(description="Requests a second on average; inf sends all at once.")] = math.inf
    burstiness: Annotated[
        float, Meta(description="Shape of the gamma-distributed gaps: 1 is Poisson, less is burstier, inf is even.")
    ] = 1.0
    max_concurrency: Annotated[int | None, Meta(description="Most requests under way at once.")] = None
    sweep_concurrency: Annotated[
        str | None, Meta(description="Values of --max-concurrency to measure one after the other, like 1,4,16,64.")
    ] = None
    sweep_request_rate: Annotated[
        str | None, Meta(description="Values of --request-rate to measure one after the other, like 1,2,4,inf.")
    ] = None
    rounds: Annotated[
        int, Meta(ge=1, description="Measure each server and load so often, with new prompts; the table has medians.")
    ] = 1
    num_warmups: Annotated[Count, Meta(description="Requests sent before and not measured.")] = 0
    ignore_eos: Annotated[bool, Meta(description="Ask for the full output length, beyond the end token.")] = False
    temperature: Annotated[float, Meta(description="Of each request; 0 is greedy, so that runs repeat.")] = 0.0

    percentile_metrics: Annotated[
        str, Meta(description="Metrics to show, by commas, out of ttft, tpot, itl, e2el.")
    ] = "ttft,tpot,itl,e2el"
    metric_percentiles: Annotated[str, Meta(description="Percentiles to show, by commas.")] = "99"
    goodput: Annotated[
        tuple[str, ...], Meta(description="Limits in ms that a good request keeps, like ttft:500 tpot:50 e2el:9000.")
    ] = ()

    plot: Annotated[
        str | None, Meta(description="Picture (.png, .svg, .pdf) of throughput against latency over a sweep.")
    ] = None
    report: Annotated[
        str | None,
        Meta(description="Page (.html) of the run, or of all: figures, distributions, course, settings."),
    ] = None
    save_result: Annotated[bool, Meta(description="Write the figures to a JSON file.")] = False
    save_detailed: Annotated[bool, Meta(description="With --save-result: each request's figures and text too.")] = False
    result_dir: Annotated[str | None, Meta(description="Folder of the JSON file. Default: the current one.")] = None
    result_filename: Annotated[str | None, Meta(description="Name of the JSON file. Default: made of the run.")] = None
    disable_tqdm: Annotated[bool, Meta(description="No progress bar.")] = False

    def __post_init__(self) -> None:
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"--base-url {self.base_url} must start with http:// or https://.")
        _check_rates(self)
        _check_comparison(self)
        if self.endpoint is not None and self.endpoint.endswith("/chat/completions") != self.is_chat:
            wanted = "openai-chat" if not self.is_chat else "openai"
            raise ConfigError(f"--endpoint {self.endpoint} does not fit --backend {self.backend}; give {wanted}.")
        if not self.save_result and (self.save_detailed or self.result_dir or self.result_filename):
            raise ConfigError("--save-detailed, --result-dir and --result-filename need --save-result.")
        # A wrong one is refused before anything is sent.
        _ = self.metrics, self.percentiles, self.limits_ms, self.targets, self.points

    @property
    def is_chat(self) -> bool:
        """Whether requests are chats."""
        return self.backend == "openai-chat"

    @property
    def server_url(self) -> str:
        """The server without a path of the API: a /v1 that users of OpenAI's clients are used to is cut off."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.base_url or f"http://{host}:{self.port}").rstrip("/").removesuffix("/v1")

    @property
    def request_url(self) -> str:
        """Where requests go."""
        return self.server_url + "/" + (self.endpoint or (_CHAT if self.is_chat else _COMPLETIONS)).lstrip("/")

    @property
    def is_comparison(self) -> bool:
        """Whether there are several runs, or may be, so that they are shown as the rows of one table."""
        sweeps = self.sweep_concurrency, self.sweep_request_rate
        return bool(self.target) or self.rounds > 1 or any(sweep is not None for sweep in sweeps)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The servers to put side by side; the one server under its own address if none is named.

        Raises:
            ConfigError: one is not of the form NAME=URL, or a name is given twice.
        """
        targets = []
        for text in self.target:
            name, _, url = text.partition("=")
            if not name or not url.startswith(("http://", "https://")):
                raise ConfigError(f"--target {text} must be NAME=URL, like here=http://127.0.0.1:8000.")
            targets.append(Target(name, url))
        if len({target.name for target in targets}) < len(targets):
            raise ConfigError("--target: each server needs a name of its own.")
        return tuple(targets) or (Target(self.server_url, self.server_url),)

    @property
    def points(self) -> tuple[LoadPoint, ...]:
        """The loads to measure one after the other.

        Raises:
            ConfigError: a list of a sweep is empty or holds something else.
        """
        if self.sweep_concurrency is not None:
            values = _list_of_numbers(self.sweep_concurrency, "--sweep-concurrency")
            for value in values:
                if value < 1 or value != int(value):
                    raise ConfigError(f"--sweep-concurrency: {value:g} must be a whole number from 1 on.")
            return tuple(LoadPoint(int(value), self.request_rate) for value in values)
        if self.sweep_request_rate is not None:
            rates = _list_of_numbers(self.sweep_request_rate, "--sweep-request-rate")
            for rate in rates:
                if not rate > 0:
                    raise ConfigError(f"--sweep-request-rate: {rate:g} must be above 0 (or inf).")
            return tuple(LoadPoint(self.max_concurrency, rate) for rate in rates)
        return (LoadPoint(self.max_concurrency, self.request_rate),)

    def single_run(self, target: Target, point: LoadPoint, index: int) -> BenchServeConfig:
        """Return the config of one run of a comparison.

        Args:
            target: the server.
            point: the load.
            index: added to the seed. A server has seen the prompts of an earlier run, so that its prefix cache would
                answer them; runs with the same index send the same prompts.
        """
        return msgspec.structs.replace(
            self,
            dataset=msgspec.structs.replace(self.dataset, seed=self.dataset.seed + index),
            base_url=target.url,
            max_concurrency=point.max_concurrency,
            request_rate=point.request_rate,
            target=(),
            sweep_concurrency=None,
            sweep_request_rate=None,
            rounds=1,
            plot=None,
            report=None,
        )

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics to show, in the order of the table.

        Raises:
            ConfigError: one does not exist.
        """
        asked = [name.strip().lower() for name in self.percentile_metrics.split(",") if name.strip()]
        for name in asked:
            if name not in METRICS:
                raise ConfigError(f"--percentile-metrics: {name!r} is not one of {', '.join(METRICS)}.")
        return tuple(name for name in METRICS if name in asked)

    @property
    def percentiles(self) -> tuple[float, ...]:
        """The percentiles to show, from 0 to 100.

        Raises:
            ConfigError: one is no number in that range.
        """
        values = [_number(text, "--metric-percentiles") for text in self.metric_percentiles.split(",") if text.strip()]
        for value in values:
            if not 0 <= value <= 100:
                raise ConfigError(f"--metric-percentiles: {value:g} must be from 0 to 100.")
        return tuple(dict.fromkeys(values))

    @property
    def limits_ms(self) -> dict[str, float]:
        """The limits of a good request in milliseconds, by metric.

        Raises:
            ConfigError: one is not of the form metric:ms.
        """
        limits = {}
        for text in self.goodput:
            name, colon, value = text.partition(":")
            if not colon or name not in _SLO_METRICS:
                raise ConfigError(f"--goodput {text} must be metric:ms with one of {', '.join(_SLO_METRICS)}.")
            limits[name] = _number(value, "--goodput")
            if not limits[name] >= 0:
                raise ConfigError(f"--goodput {text}: the limit must be at least 0 ms.")
        return limits


def _check_rates(config: BenchServeConfig) -> None:
    for flag, value in (("--request-rate", config.request_rate), ("--burstiness", config.burstiness)):
        if not value > 0:
            raise ConfigError(f"{flag} {value:g} must be above 0 (or inf).")
    if config.max_concurrency is not None and config.max_concurrency < 1:
        raise ConfigError(f"--max-concurrency {config.max_concurrency} must be at least 1.")
    if not 0 <= config.temperature < math.inf:
        raise ConfigError(f"--temperature {config.temperature:g} must be at least 0.")


def _check_comparison(config: BenchServeConfig) -> None:
    if config.target and config.base_url is not None:
        raise ConfigError("--target and --base-url both name servers; give one of them.")
    if config.sweep_concurrency is not None and config.sweep_request_rate is not None:
        raise ConfigError("--sweep-concurrency and --sweep-request-rate are two sweeps; give one of them.")
    if config.plot is not None and config.sweep_concurrency is None and config.sweep_request_rate is None:
        raise ConfigError("--plot needs a sweep: give --sweep-concurrency 1,4,16,64 or --sweep-request-rate.")


def _list_of_numbers(text: str, flag: str) -> tuple[float, ...]:
    values = tuple(_number(part, flag) for part in text.split(",") if part.strip())
    if not values:
        raise ConfigError(f"{flag} holds no number; give a list like 1,4,16.")
    return values


def _number(text: str, flag: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{flag}: {text.strip()!r} is no number.") from None
