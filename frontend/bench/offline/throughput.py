"""`pagewire bench throughput`: all requests at once into an engine of this process's own."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagewire.ipc.errors import ConfigError
from pagewire.ipc.outputs import EngineInfo
from pagewire.ipc.sampling_params import SamplingParams

from ...offline.llm import LLM
from ..dataset.datasets import Dataset, SampleRequest, make_dataset
from ..text_table import figure, percent
from .alternatives import longest_batch_paged, longest_batch_reserved, static_slot_occupancy
from .config import BenchThroughputConfig
from .engine_observer import EngineObserver
from .result_file import check_result_file, save_result

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ThroughputResult:
    """The figures of a run.

    Attributes:
        elapsed_s: from the first prompt's tokens to the last answer's end.
        requests: what was asked for, in order.
        observer: took the stats of every step.
        info: the engine's facts.
    """

    elapsed_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    requests: Sequence[SampleRequest]
    observer: EngineObserver
    info: EngineInfo

    @property
    def static_occupancy(self) -> float | None:
        """Slot occupancy that static batching would have; see `static_slot_occupancy`."""
        return static_slot_occupancy(self.requests, self.info.max_num_seqs)

    @property
    def batches_that_fit(self) -> tuple[int, int]:
        """How many such requests fit into KV memory at once: in blocks, and with the longest context reserved."""
        num_blocks, block_size = self.info.num_blocks, self.info.block_size
        return (
            longest_batch_paged(self.requests, num_blocks, block_size),
            longest_batch_reserved(self.info.max_model_len, num_blocks, block_size),
        )

    def lines(self) -> list[str]:
        """Return what is printed; the first lines as vLLM prints them."""
        total, seen = self.num_prompt_tokens + self.num_output_tokens, self.observer
        paged, reserved = self.batches_that_fit
        longest, num_rows = self.info.max_model_len, self.info.max_num_seqs
        speeds = (
            f"{len(self.requests) / self.elapsed_s:.2f} requests/s, {total / self.elapsed_s:.2f} total tokens/s, "
            f"{self.num_output_tokens / self.elapsed_s:.2f} output tokens/s"
        )
        filled = f"mean {percent(seen.mean_filled)}, with most blocks in use {percent(seen.filled_at_peak)}"
        return [
            f"Throughput: {speeds}",
            f"Total num prompt tokens:  {self.num_prompt_tokens}",
            f"Total num output tokens:  {self.num_output_tokens}",
            f"Steps: {seen.num_steps}, at most {seen.peak_running} requests at once",
            f"Mean step: {figure(seen.device_ms, 2)} ms on the device, idle before it {figure(seen.host_gap_ms, 2)} ms",
            f"Slot occupancy, until the queue was empty: {percent(seen.slot_occupancy)} of {num_rows} rows worked",
            f"  static batching of the same lengths (computed): {percent(self.static_occupancy)}",
            f"KV slots in allocated blocks that hold a token: {filled}",
            f"  contiguous reservation of {longest} tokens a request (computed): "
            + percent(seen.filled_if_reserved(longest)),
            f"Longest batch that fits into KV memory (computed): {paged} such requests, {reserved} by reservation",
        ]

    def document(self) -> dict[str, Any]:  # Any: JSON
        """Return what is saved; the first keys are vLLM's."""
        total, seen = self.num_prompt_tokens + self.num_output_tokens, self.observer
        paged, reserved = self.batches_that_fit
        return {
            "elapsed_time": self.elapsed_s,
            "num_requests": len(self.requests),
            "total_num_tokens": total,
            "requests_per_second": len(self.requests) / self.elapsed_s,
            "tokens_per_second": total / self.elapsed_s,
            "output_tokens_per_second": self.num_output_tokens / self.elapsed_s,
            "num_steps": seen.num_steps,
            "peak_requests_running": seen.peak_running,
            "mean_device_ms": seen.device_ms,
            "mean_host_gap_ms": seen.host_gap_ms,
            "slot_occupancy": seen.slot_occupancy,
            "static_slot_occupancy": self.static_occupancy,
            "kv_slots_filled_mean": seen.mean_filled,
            "kv_slots_filled_at_peak": seen.filled_at_peak,
            "kv_slots_filled_if_reserved": seen.filled_if_reserved(self.info.max_model_len),
            "longest_batch_paged": paged,
            "longest_batch_reserved": reserved,
        }


def run(config: BenchThroughputConfig, engine_options: Mapping[str, object], say: Say) -> int:
    """Start an engine, send the requests, print the figures; return the exit code.

    Args:
        config: the requests, and what becomes of the figures.
        engine_options: those of `LLM`, with "model" among them if one is named.
        say: prints a line.

    Raises:
        StartError: the engine can't start, a request is beyond its context, or a file can't be used.
    """
    check_result_file(config.output_json)
    options = dict(engine_options)
    model = options.pop("model", None)
    with LLM(None if model is None else str(model), chat_template=None, **options) as llm:
        result = _measure(llm, config, say)
    for line in result.lines():
        say(line)
    save_result(config.output_json, result.document())
    return 0


def fitted(token_ids: Sequence[int], length: int) -> list[int]:
    """Return a prompt of exactly `length` tokens: cut, or repeated from its start."""
    if not token_ids:
        raise ConfigError("the model's tokenizer makes no token of a prompt of the dataset.")
    return [token_ids[index % len(token_ids)] for index in range(length)]


def _measure(llm: LLM, config: BenchThroughputConfig, say: Say) -> ThroughputResult:
    dataset = asyncio.run(_dataset(llm, config))
    for note in dataset.notes:
        say(note)
    requests = dataset.requests
    _check_lengths(requests, llm.info)
    tokenizer = llm.get_tokenizer()
    # Made here and not in the measured time: a server's clients have their prompts' text at hand, and an engine that
    # is asked for tokens is what is measured.
    prompts = [
        fitted(tokenizer.encode(one.prompt, add_special_tokens=False), one.num_prompt_tokens) for one in requests
    ]
    params = [
        SamplingParams(temperature=config.temperature, max_tokens=one.num_output_tokens, ignore_eos=True)
        for one in requests
    ]
    observer = EngineObserver(llm.info.block_size)
    llm.add_stats_listener(observer.take)
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=not config.disable_tqdm and sys.stderr.isatty())
    elapsed_s = time.perf_counter() - started
    return ThroughputResult(
        elapsed_s=elapsed_s,
        num_prompt_tokens=sum(len(output.prompt_token_ids) for output in outputs),
        num_output_tokens=sum(len(answer.token_ids) for output in outputs for answer in output.outputs),
        requests=requests,
        observer=observer,
        info=llm.info,
    )


async def _dataset(llm: LLM, config: BenchThroughputConfig) -> Dataset:
    tokenizer = llm.get_tokenizer()

    async def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    return await make_dataset(config.requests, count)


def _check_lengths(requests: Sequence[SampleRequest], info: EngineInfo) -> None:
    longest = max(one.num_prompt_tokens + one.num_output_tokens for one in requests)
    if longest > info.max_model_len:
        raise ConfigError(
            f"a request of the dataset has {longest} tokens, prompt and output together, and {info.model} takes "
            f"{info.max_model_len}; give shorter ones (--input-len, --output-len)."
        )
