"""The engine end to end without a server: equal requests at once, and what its steps took."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from pagewire import LLM, SamplingParams
from pagewire.ipc.outputs import StepStats
from tools.gpu_check.checkpoint import write_checkpoint
from tools.gpu_check.records import EngineStart, OfflineRun
from tools.gpu_check.setting import Setting
from tools.gpu_check.settling import settle

# Before a batch is measured it runs so long: the engine captures a graph for a batch size once it was needed often.
_WARM_PROMPT, _WARM_OUTPUT = 8, 24
_SETTLING_S = 20.0


class Sample(NamedTuple):
    """The core's figures after a step, and when they came."""

    time_s: float
    stats: StepStats


class Window(NamedTuple):
    """The longest series of steps in which all requests decoded and none was prefilled.

    Attributes:
        step_s: time of each step.
        context: mean tokens of a request in the KV cache.
        device_s: mean time on the device.
        host_gap_s: mean time that the device idled.
    """

    step_s: tuple[float, ...]
    context: float
    device_s: float
    host_gap_s: float


def engine_options(setting: Setting) -> dict[str, Any]:  # Any: each option has its own type
    """Return how the engine runs, as `LLM` takes it."""
    options: dict[str, Any] = {
        "load_format": "dummy",
        "device": setting.device,
        "max_model_len": 2 * setting.context,
        "max_num_seqs": max(setting.batches),
    }
    if setting.is_tiny:
        options |= {"kernels": "reference", "num_gpu_blocks_override": 64}
    return options


def make_prompts(setting: Setting, count: int, length: int, seed: int) -> list[list[int]]:
    """Return prompts of token ids by chance, no two of which begin alike: a prefix cache finds nothing."""
    rng = random.Random(f"{seed} {count}")
    return [[rng.randrange(3, setting.model.vocab_size) for _ in range(length)] for _ in range(count)]


def decode_window(samples: Sequence[Sample], num_requests: int) -> Window | None:
    """Find the steps that only decoded, all requests in each; None if there are fewer than three in a row."""
    best: list[int] = []
    current: list[int] = []
    for index in range(1, len(samples)):
        before, after = samples[index - 1].stats, samples[index].stats
        is_decode = (
            after.num_steps == before.num_steps + 1
            and after.num_prompt_tokens == before.num_prompt_tokens
            and after.num_generation_tokens - before.num_generation_tokens == num_requests
        )
        current = [*current, index] if is_decode else []
        if len(current) > len(best):
            best = current
    if len(best) < 3:
        return None
    first, last = samples[best[0] - 1].stats, samples[best[-1]].stats
    return Window(
        step_s=tuple(samples[index].time_s - samples[index - 1].time_s for index in best),
        context=fmean(samples[index].stats.num_filled_slots for index in best) / num_requests,
        device_s=(last.device_s - first.device_s) / len(best),
        host_gap_s=(last.host_gap_s - first.host_gap_s) / len(best),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies, to the next larger one."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def run(setting: Setting) -> Iterator[EngineStart | OfflineRun]:
    """The part of the check."""
    directory = write_checkpoint(setting.model, setting.directory / "checkpoint")
    started = time.perf_counter()
    with LLM(str(directory), **engine_options(setting)) as llm:
        yield EngineStart(seconds=time.perf_counter() - started, memory=llm.info.memory)
        samples: list[Sample] = []
        llm.add_stats_listener(lambda stats: samples.append(Sample(time.perf_counter(), stats)))
        one = make_prompts(setting, 1, _WARM_PROMPT, seed=0)
        settle(lambda: _generate(llm, one, 1), _SETTLING_S)
        for batch in setting.batches:
            _generate(llm, make_prompts(setting, batch, _WARM_PROMPT, seed=1), min(_WARM_OUTPUT, setting.context))
            yield _measure(llm, setting, batch, samples)


def _measure(llm: LLM, setting: Setting, batch: int, samples: list[Sample]) -> OfflineRun:
    prompts = make_prompts(setting, batch, setting.prompt_tokens, seed=2)
    samples.clear()
    started = time.perf_counter()
    first_tokens = _generate(llm, prompts, setting.output_tokens)
    elapsed_s = time.perf_counter() - started
    window = decode_window(samples, batch)
    run = OfflineRun(
        num_requests=batch,
        prompt_tokens=setting.prompt_tokens,
        output_tokens=setting.output_tokens,
        output_tokens_per_s=batch * setting.output_tokens / elapsed_s,
        ttft_ms=(1e3 * percentile(first_tokens, 0.5), 1e3 * percentile(first_tokens, 0.99)),
    )
    if window is None:
        return run
    return OfflineRun(
        num_requests=run.num_requests,
        prompt_tokens=run.prompt_tokens,
        output_tokens=run.output_tokens,
        output_tokens_per_s=run.output_tokens_per_s,
        ttft_ms=run.ttft_ms,
        decode_tokens_per_s=batch / fmean(window.step_s),
        decode_context=window.context,
        itl_ms=(1e3 * percentile(window.step_s, 0.5), 1e3 * percentile(window.step_s, 0.99)),
        device_ms=1e3 * window.device_s,
        host_gap_ms=1e3 * window.host_gap_s,
    )


def _generate(llm: LLM, prompts: Sequence[list[int]], output_tokens: int) -> list[float]:
    """Answer all prompts; return the seconds until each one's first token."""
    params = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True)
    outputs = llm.generate(list(prompts), params, use_tqdm=False)
    return [output.metrics.first_token_time or 0.0 for output in outputs]
