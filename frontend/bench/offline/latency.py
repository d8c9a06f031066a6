"""`pagewire bench latency`: one batch of equal requests, again and again."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from pagewire.ipc.errors import ConfigError
from pagewire.ipc.sampling_params import SamplingParams

from ...offline.llm import LLM
from .config import BenchLatencyConfig
from .result_file import check_result_file, save_result

Say = Callable[[str], None]

_PERCENTILES = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True, slots=True)
class LatencyResult:
    """How long each measured batch took, in seconds."""

    latencies_s: Sequence[float]

    @property
    def mean_s(self) -> float:
        """The mean."""
        return float(np.mean(self.latencies_s))

    @property
    def percentiles_s(self) -> dict[int, float]:
        """By percentile; linear between neighbours."""
        return {percentile: float(np.percentile(self.latencies_s, percentile)) for percentile in _PERCENTILES}

    def lines(self) -> list[str]:
        """Return what is printed, as vLLM prints it."""
        return [
            f"Avg latency: {self.mean_s} seconds",
            *(f"{percentile}% percentile latency: {value} seconds" for percentile, value in self.percentiles_s.items()),
        ]

    def document(self) -> dict[str, Any]:  # Any: JSON
        """Return what is saved, with vLLM's keys."""
        return {
            "avg_latency": self.mean_s,
            "latencies": list(self.latencies_s),
            "percentiles": {str(percentile): value for percentile, value in self.percentiles_s.items()},
        }


def run(config: BenchLatencyConfig, engine_options: Mapping[str, object], say: Say) -> int:
    """Start an engine, run the batches, print the figures; return the exit code.

    Args:
        config: the batches, and what becomes of the figures.
        engine_options: those of `LLM`, with "model" among them if one is named. The prefix cache is off unless they
            turn it on: batches with the same prompts would else be measured without their prefill.
        say: prints a line.

    Raises:
        StartError: the engine can't start, a request is beyond its context, or a file can't be used.
    """
    check_result_file(config.output_json)
    options: dict[str, object] = {"enable_prefix_caching": False, **engine_options}
    model = options.pop("model", None)
    with LLM(None if model is None else str(model), chat_template=None, **options) as llm:
        result = _measure(llm, config, say)
    for line in result.lines():
        say(line)
    save_result(config.output_json, result.document())
    return 0


def _measure(llm: LLM, config: BenchLatencyConfig, say: Say) -> LatencyResult:
    info = llm.info
    if config.input_len + config.output_len > info.max_model_len:
        raise ConfigError(
            f"--input-len {config.input_len} and --output-len {config.output_len} are beyond the {info.max_model_len} "
            f"tokens that {info.model} takes; give less."
        )
    if config.batch_size > info.max_num_seqs:
        say(f"Only {info.max_num_seqs} of the {config.batch_size} requests run at once (--max-num-seqs).")
    rng = random.Random(f"latency {info.seed or 0}")  # noqa: S311 - a load pattern, no secret
    prompts = [rng.choices(range(info.vocab_size), k=config.input_len) for _ in range(config.batch_size)]
    params = SamplingParams(temperature=config.temperature, max_tokens=config.output_len, ignore_eos=True)

    def run_batch() -> float:
        started = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - started

    is_silent = config.disable_tqdm or not sys.stderr.isatty()
    for _ in tqdm(range(config.num_iters_warmup), desc="Warm-up iterations", disable=is_silent):
        run_batch()
    iterations = tqdm(range(config.num_iters), desc="Profiling iterations", disable=is_silent)
    return LatencyResult([run_batch() for _ in iterations])
