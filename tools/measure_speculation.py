"""What drafts bring: `python -m tools.measure_speculation [MODEL] [--method ngram] [--batches 1 16]`.

Two engines run at once, one with drafts and one without, each in its own processes, and take turns at the same
requests, so that a machine whose speed drifts slows both alike. There are two workloads: the copy-heavy prompts of
tools/copy_prompts.py, answered greedily, and prompts that are answered at temperature 1, whose answers repeat nothing.

Answers have to be the same with drafts and without: the first that differs ends the run with exit code 1. A greedy
answer that goes round in a circle (a run of 16 tokens that it has twice and that is not in its prompt) flatters lookup;
its prompt is left out of all figures, and counted. Of each workload and batch, output tokens a second are printed by
the medians of all rounds and by the best ones, which is what counts on a machine that others use; and the acceptance.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pagewire.frontend.offline.llm import LLM
from pagewire.frontend.offline.outputs import RequestOutput
from pagewire.ipc.sampling_params import SamplingParams
from tools.copy_prompts import COPY_PROMPTS
from tools.prompts import PROMPTS

LOOP_LENGTH = 16


class Workload(NamedTuple):
    """Prompts, and how each is answered."""

    name: str
    prompts: Sequence[str]
    params: Sequence[SamplingParams]

    def part(self, indices: Sequence[int]) -> Workload:
        """Return the workload of some of the prompts."""
        return Workload(self.name, [self.prompts[i] for i in indices], [self.params[i] for i in indices])


class Turns(NamedTuple):
    """What an engine has done of a workload, batch by batch.

    Attributes:
        seconds: [num_batches][num_rounds] that each batch took.
        outputs: the answers of the last round, in the order of the prompts.
    """

    seconds: list[list[float]]
    outputs: list[RequestOutput]

    def total_s(self, of_batch: Callable[[list[float]], float]) -> float:
        """Return the seconds of all batches, each by its median or its best round."""
        return sum(map(of_batch, self.seconds))


def copying(num_tokens: int) -> Workload:
    """Return the workload that drafts are for."""
    params = SamplingParams(temperature=0, max_tokens=num_tokens)
    return Workload("copying", COPY_PROMPTS, [params] * len(COPY_PROMPTS))


def without_repeats(num_tokens: int, num_prompts: int) -> Workload:
    """Return a workload whose answers are drawn, each with a seed of its own, and say nothing twice."""
    prompts = [PROMPTS[i % len(PROMPTS)][:40] for i in range(num_prompts)]
    params = [SamplingParams(temperature=1, seed=i, max_tokens=num_tokens, ignore_eos=True) for i in range(num_prompts)]
    return Workload("no repeats", prompts, params)


def answer(llm: LLM, workload: Workload) -> tuple[float, list[RequestOutput]]:
    """Have an engine answer all prompts at once; return the seconds and the answers."""
    started = time.perf_counter()
    outputs = llm.generate(workload.prompts, workload.params, use_tqdm=False)
    return time.perf_counter() - started, outputs


def answers_of(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    """Return the answers' token ids."""
    return [output.outputs[0].token_ids for output in outputs]


def goes_in_circles(prompt: Sequence[int], answer: Sequence[int]) -> bool:
    """Whether an answer has a run of tokens twice that its prompt does not have."""
    known, seen = set(_runs(prompt)), set()
    for run in _runs(answer):
        if run in known:
            continue
        if run in seen:
            return True
        seen.add(run)
    return False


def _runs(token_ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for first in range(len(token_ids) - LOOP_LENGTH + 1):
        yield tuple(token_ids[first : first + LOOP_LENGTH])


def take_turns(engines: Sequence[LLM], workload: Workload, batch: int, num_rounds: int) -> list[Turns]:
    """Have each engine answer the workload so many prompts at a time, in turn batch by batch."""
    indices = range(len(workload.prompts))
    turns = [Turns([], []) for _ in engines]
    for first in indices[::batch]:
        part = workload.part(indices[first : first + batch])
        rounds: list[list[tuple[float, list[RequestOutput]]]] = [[] for _ in engines]
        for number in range(num_rounds):
            # Who begins changes: the second one finds the machine as the first one left it.
            for index in range(len(engines))[:: -1 if number % 2 else 1]:
                rounds[index].append(answer(engines[index], part))
        for of_engine, of_rounds in zip(turns, rounds, strict=True):
            of_engine.seconds.append([seconds for seconds, _ in of_rounds])
            of_engine.outputs.extend(of_rounds[-1][1])
    return turns


def compare(plain: LLM, drafting: LLM, workload: Workload, batch: int, num_rounds: int) -> bool:
    """Measure a workload on both engines and print the figures; return whether the answers were the same."""
    without, with_drafts = take_turns([plain, drafting], workload, batch, num_rounds)
    if answers_of(without.outputs) != answers_of(with_drafts.outputs):
        print(f"{workload.name}, batch {batch}: the answers differ")
        return False
    num_tokens = sum(len(token_ids) for token_ids in answers_of(without.outputs))
    num_drafts = sum(output.metrics.num_draft_tokens for output in with_drafts.outputs)
    num_accepted = sum(output.metrics.num_accepted_tokens for output in with_drafts.outputs)
    print(f"{workload.name}, batch {batch}: {len(workload.prompts)} prompts, {num_tokens} tokens")
    for name, of_batch in (("medians", statistics.median), ("best", min)):
        rate, rate_with = num_tokens / without.total_s(of_batch), num_tokens / with_drafts.total_s(of_batch)
        print(f"  {name:8} {rate:7.1f} -> {rate_with:7.1f} tokens/s, x {rate_with / rate:.3f}")
    print(
        f"  {num_drafts} drafts, {num_accepted} accepted ({num_accepted / max(num_drafts, 1):.0%}): "
        f"{num_accepted / max(num_tokens, 1):.0%} of the tokens",
        flush=True,
    )
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.measure_speculation", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("model", nargs="?", default="SmolLM2-135M-Instruct")
    parser.add_argument("--method", choices=["ngram", "suffix"], default="ngram")
    parser.add_argument("--drafts", type=int, help="most drafts of a row; default: the engine's")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=128, help="of an answer, at most")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=16, help="of the workload without repeats")
    asked = parser.parse_args(arguments)
    # No prefix cache: from the second round on, prompts would cost nothing, and the first one would stand out.
    options = {"model": asked.model, "max_model_len": 1024, "enable_prefix_caching": False}
    drafts = {"speculative_method": asked.method, "num_speculative_tokens": asked.drafts}
    with (
        LLM(**options, num_gpu_blocks_override=1200) as plain,
        LLM(**options, **drafts, num_gpu_blocks_override=1200) as drafting,
    ):
        copies = copying(asked.tokens)
        _, outputs = answer(plain, copies)
        kept = [
            index
            for index, output in enumerate(outputs)
            if not goes_in_circles(output.prompt_token_ids, output.outputs[0].token_ids)
        ]
        print(f"{len(copies.prompts) - len(kept)} of {len(copies.prompts)} answers go round in circles and are dropped")
        answer(drafting, copies)  # learns what steps cost
        workloads = [copies.part(kept), without_repeats(asked.tokens, asked.prompts)]
        is_same = [
            compare(plain, drafting, workload, batch, asked.rounds) for workload in workloads for batch in asked.batches
        ]
    return 0 if all(is_same) else 1


if __name__ == "__main__":
    sys.exit(main())
