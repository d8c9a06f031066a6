"""What drafts bring: `python -m tools.measure_speculation [MODEL] [--method ngram] [--batches 1 16]`.

Two engines run at once, one with drafts and one without, each in its own processes, and take turns at the same
requests, so that a machine whose speed drifts slows both alike. There are two workloads: the copy-heavy prompts of
tools/copy_prompts.py, answered greedily, and prompts that are answered at temperature 1, whose answers repeat nothing.

Answers have to be the same with drafts and without: the first that differs ends the run with exit code 1. A greedy
answer that goes round in a circle (a run of 16 tokens that it has twice and that is not in its prompt) flatters lookup;
its prompt is left out of all figures, and counted. Of each workload and batch the medians of all rounds are printed,
of tokens a second and of their ratio, round by round; and the acceptance.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
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


class Round(NamedTuple):
    """One engine's turn at a workload.

    Attributes:
        seconds: that it took.
        outputs: the answers, in the order of the prompts.
    """

    seconds: float
    outputs: list[RequestOutput]

    @property
    def rate(self) -> float:
        """Output tokens a second."""
        return sum(len(answer) for answer in answers_of(self.outputs)) / self.seconds


def copying(num_tokens: int) -> Workload:
    """Return the workload that drafts are for."""
    params = SamplingParams(temperature=0, max_tokens=num_tokens)
    return Workload("copying", COPY_PROMPTS, [params] * len(COPY_PROMPTS))


def without_repeats(num_tokens: int, num_prompts: int) -> Workload:
    """Return a workload whose answers are drawn, each with a seed of its own, and say nothing twice."""
    prompts = [PROMPTS[i % len(PROMPTS)][:40] for i in range(num_prompts)]
    params = [SamplingParams(temperature=1, seed=i, max_tokens=num_tokens, ignore_eos=True) for i in range(num_prompts)]
    return Workload("no repeats", prompts, params)


def play(llm: LLM, workload: Workload, batch: int) -> Round:
    """Have an engine answer a workload, so many prompts at a time."""
    outputs: list[RequestOutput] = []
    started = time.perf_counter()
    for first in range(0, len(workload.prompts), batch):
        part = slice(first, first + batch)
        outputs += llm.generate(workload.prompts[part], workload.params[part], use_tqdm=False)
    return Round(time.perf_counter() - started, outputs)


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


def compare(plain: LLM, drafting: LLM, workload: Workload, batch: int, num_rounds: int) -> bool:
    """Measure a workload on both engines in turn and print the figures; return whether the answers were the same."""
    rates: dict[LLM, list[float]] = {plain: [], drafting: []}
    last: dict[LLM, Round] = {}
    for number in range(num_rounds):
        # Who begins changes: the second one finds the machine as the first one left it.
        for llm in (plain, drafting) if number % 2 else (drafting, plain):
            last[llm] = play(llm, workload, batch)
            rates[llm].append(last[llm].rate)
    if answers_of(last[plain].outputs) != answers_of(last[drafting].outputs):
        print(f"{workload.name}, batch {batch}: the answers differ")
        return False
    ratios = [with_drafts / without for with_drafts, without in zip(rates[drafting], rates[plain], strict=True)]
    num_drafts = sum(output.metrics.num_draft_tokens for output in last[drafting].outputs)
    num_accepted = sum(output.metrics.num_accepted_tokens for output in last[drafting].outputs)
    num_tokens = sum(len(answer) for answer in answers_of(last[drafting].outputs))
    print(
        f"{workload.name}, batch {batch}, {len(workload.prompts)} prompts, {num_tokens} tokens: "
        f"{statistics.median(rates[plain]):.1f} -> {statistics.median(rates[drafting]):.1f} tokens/s, "
        f"ratio {statistics.median(ratios):.3f} ({' '.join(f'{ratio:.2f}' for ratio in ratios)}); "
        f"{num_drafts} drafts, {num_accepted} accepted ({num_accepted / max(num_drafts, 1):.0%}), "
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
        first = play(plain, copies, 1)  # warms up, too
        kept = [
            index
            for index, output in enumerate(first.outputs)
            if not goes_in_circles(output.prompt_token_ids, output.outputs[0].token_ids)
        ]
        print(f"{len(copies.prompts) - len(kept)} of {len(copies.prompts)} answers go round in circles and are dropped")
        play(drafting, copies.part(kept[:2]), 1)
        workloads = [copies.part(kept), without_repeats(asked.tokens, asked.prompts)]
        is_same = [
            compare(plain, drafting, workload, batch, asked.rounds) for workload in workloads for batch in asked.batches
        ]
    return 0 if all(is_same) else 1


if __name__ == "__main__":
    sys.exit(main())
