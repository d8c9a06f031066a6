"""What `pagewire bench serve` can be told: names and defaults are those of `vllm bench serve`.

As in `pagewire.ipc.config`, the flags are made from these fields. They live here since no other process reads them.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pagewire.ipc.errors import ConfigError

Backend = Literal["openai", "openai-chat", "vllm"]
DatasetName = Literal["random", "sharegpt", "prefix_repetition"]

METRICS = ("ttft", "tpot", "itl", "e2el")
_SLO_METRICS = ("ttft", "tpot", "e2el")
_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"

Count = Annotated[int, Meta(ge=0)]


class BenchServeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Load on a server, and what is measured."""

    backend: Annotated[Backend, Meta(description="openai and vllm: completions; openai-chat: chat completions.")] = (
        "openai"
    )
    base_url: Annotated[
        str | None, Meta(description="The server, like https://host:8000, instead of host and port.")
    ] = None
    host: Annotated[str, Meta(description="The server's host.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535, description="The server's port.")] = 8000
    endpoint: Annotated[
        str | None, Meta(description=f"Path of the requests. Default: {_COMPLETIONS}, or {_CHAT} for openai-chat.")
    ] = None
    model: Annotated[str | None, Meta(description="Name to ask for. Default: the first that /v1/models lists.")] = None
    api_key: Annotated[
        str | None, Meta(description="Bearer key to send. Default: PAGEWIRE_API_KEY, VLLM_API_KEY or OPENAI_API_KEY.")
    ] = None

    dataset_name: Annotated[
        DatasetName, Meta(description="random words, conversations, or random words behind a few shared prefixes.")
    ] = "random"
    dataset_path: Annotated[
        str | None, Meta(description="ShareGPT JSON file; without it the sharegpt dataset is synthetic.")
    ] = None
    num_prompts: Annotated[int, Meta(ge=1, description="Requests to measure.")] = 1000
    seed: Annotated[int, Meta(description="Of prompts and arrivals: the same seed gives the same load.")] = 0
    random_input_len: Annotated[int, Meta(ge=1, description="Prompt tokens of a random request.")] = 1024
    random_output_len: Annotated[int, Meta(ge=1, description="Output tokens of a random request.")] = 128
    random_range_ratio: Annotated[
        float, Meta(description="Random lengths are drawn from len * (1 - r) to len * (1 + r).")
    ] = 0.0
    sharegpt_output_len: Annotated[
        int | None, Meta(description="Output tokens of every conversation, instead of its reply's length.")
    ] = None
    prefix_repetition_prefix_len: Annotated[int, Meta(ge=1, description="Tokens of a shared prefix.")] = 256
    prefix_repetition_suffix_len: Annotated[int, Meta(ge=1, description="Own tokens behind a prefix.")] = 256
    prefix_repetition_num_prefixes: Annotated[int, Meta(ge=1, description="Different prefixes.")] = 10
    prefix_repetition_output_len: Annotated[int, Meta(ge=1, description="Output tokens of each.")] = 128

    request_rate: Annotated[float, Meta(description="Requests a second on average; inf sends all at once.")] = math.inf
    burstiness: Annotated[
        float, Meta(description="Shape of the gamma-distributed gaps: 1 is Poisson, less is burstier, inf is even.")
    ] = 1.0
    max_concurrency: Annotated[int | None, Meta(description="Most requests under way at once.")] = None
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

    save_result: Annotated[bool, Meta(description="Write the figures to a JSON file.")] = False
    save_detailed: Annotated[bool, Meta(description="With --save-result: each request's figures and text too.")] = False
    result_dir: Annotated[str | None, Meta(description="Folder of the JSON file. Default: the current one.")] = None
    result_filename: Annotated[str | None, Meta(description="Name of the JSON file. Default: made of the run.")] = None
    disable_tqdm: Annotated[bool, Meta(description="No progress bar.")] = False

    def __post_init__(self) -> None:
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"--base-url {self.base_url} must start with http:// or https://.")
        _check_rates(self)
        _check_dataset(self)
        if self.endpoint is not None and self.endpoint.endswith("/chat/completions") != self.is_chat:
            wanted = "openai-chat" if not self.is_chat else "openai"
            raise ConfigError(f"--endpoint {self.endpoint} does not fit --backend {self.backend}; give {wanted}.")
        if not self.save_result and (self.save_detailed or self.result_dir or self.result_filename):
            raise ConfigError("--save-detailed, --result-dir and --result-filename need --save-result.")
        _ = self.metrics, self.percentiles, self.limits_ms  # a wrong one is refused before anything is sent

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


def _check_dataset(config: BenchServeConfig) -> None:
    if config.dataset_path is not None and config.dataset_name != "sharegpt":
        raise ConfigError(f"--dataset-path is for --dataset-name sharegpt; {config.dataset_name} makes its own text.")
    if not 0 <= config.random_range_ratio < 1:
        raise ConfigError(f"--random-range-ratio {config.random_range_ratio:g} must be from 0 to below 1.")
    if config.sharegpt_output_len is not None and config.sharegpt_output_len < 1:
        raise ConfigError(f"--sharegpt-output-len {config.sharegpt_output_len} must be at least 1.")


def _number(text: str, flag: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{flag}: {text.strip()!r} is no number.") from None
