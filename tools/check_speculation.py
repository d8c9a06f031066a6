"""Check that drafts change no answer: `python -m tools.check_speculation [--methods ngram suffix] [--batches 1 4 16]`.

Every prompt is answered greedily and seeded at temperature 1, by an engine without drafts and by engines with them, for
each way of guessing and each number of requests at once. Token ids and the fp32 bits of logprobs are compared. With
`--speculative-model` a draft model is one of the ways. A line a run says how many drafts were checked and how many were
right: a run without any shows little. Exit code 1: an answer differs.

On a GPU a row's bits depend on the step that it is in, with drafts or without, unless `--batch-invariant` is given.
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pagewire.frontend.offline.llm import LLM
from pagewire.frontend.offline.outputs import RequestOutput
from pagewire.ipc.sampling_params import SamplingParams
from tools.copy_prompts import COPY_PROMPTS
from tools.prompts import PROMPTS

Answer = tuple[list[int], list[bytes]]  # token ids, and their logprobs as fp32 bits


class Run(NamedTuple):
    """What one engine answered.

    Attributes:
        answers: of all requests.
        num_drafts, num_accepted: guesses that were checked for them, and those that were right.
        seconds: that the answers took.
    """

    answers: list[Answer]
    num_drafts: int
    num_accepted: int
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line a way of guessing and batch; return 1 if an answer differs."""
    args = _parse(arguments)
    prompts, params = make_requests(args.prompts, args.tokens)
    base: dict[str, Any] = {  # Any: keyword arguments of LLM
        "model": args.model,
        "max_model_len": args.max_model_len,
        "kernels": args.kernels,
        "enforce_eager": args.enforce_eager,
        "batch_invariant": args.batch_invariant,
        "tensor_parallel_size": args.tensor_parallel_size,
        "pipeline_parallel_size": args.pipeline_parallel_size,
    }
    print(f"{len(prompts)} requests of {args.tokens} tokens, half of them seeded at temperature 1", flush=True)
    print(f"{'drafts':12} {'at once':>7}  {'identical':>9}  {'checked':>8}  {'right':>14}  {'seconds':>7}", flush=True)
    plain = _run(base, prompts, params, max(args.batches))
    _report("none", max(args.batches), plain, plain)
    num_differing = 0
    for name, options in _ways(args):
        for batch in args.batches:
            num_differing += _report(name, batch, _run(base | options, prompts, params, batch), plain)
    print("all answers are bit-identical" if not num_differing else f"{num_differing} answers differ")
    return int(num_differing > 0)


def make_requests(num_prompts: int, num_tokens: int) -> tuple[list[str], list[SamplingParams]]:
    """Return so many prompts twice, for greedy and for seeded answers; half of the prompts have much to copy."""
    some = [prompt for pair in zip(COPY_PROMPTS, PROMPTS, strict=False) for prompt in pair]
    # More prompts than there are begin alike and go on in another way.
    prompts = [some[i % len(some)] + " And then" * (i // len(some)) for i in range(num_prompts)]
    greedy = [SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, logprobs=1) for _ in prompts]
    seeded = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=num_tokens, ignore_eos=True, logprobs=1)
        for seed in range(num_prompts)
    ]
    return prompts * 2, greedy + seeded


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--methods", nargs="*", default=["ngram", "suffix"])
    parser.add_argument("--speculative-model", help="a draft model, checked as well")
    parser.add_argument("--num-speculative-tokens", type=int, default=5)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 16], help="requests at once")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--enforce-eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--batch-invariant", action="store_true", help="needed on a GPU")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--pipeline-parallel-size", type=int, default=1)
    return parser.parse_args(arguments)


def _ways(args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each way of guessing with the options of its engine."""
    for method in args.methods:
        yield method, {"speculative_method": method, "num_speculative_tokens": args.num_speculative_tokens}
    if args.speculative_model is not None:
        yield (
            "draft model",
            {"speculative_model": args.speculative_model, "num_speculative_tokens": args.num_speculative_tokens},
        )


def _run(options: dict[str, Any], prompts: list[str], params: list[SamplingParams], batch: int) -> Run:
    with LLM(**options, max_num_seqs=batch) as llm:
        started = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - started
    return Run(
        answers=[_answer_of(output) for output in outputs],
        num_drafts=sum(output.metrics.num_draft_tokens for output in outputs),
        num_accepted=sum(output.metrics.num_accepted_tokens for output in outputs),
        seconds=seconds,
    )


def _answer_of(output: RequestOutput) -> Answer:
    completion = output.outputs[0]
    assert completion.logprobs is not None
    entries = zip(completion.token_ids, completion.logprobs, strict=True)
    return list(completion.token_ids), [struct.pack("<f", entry[token].logprob) for token, entry in entries]


def _report(name: str, batch: int, run: Run, plain: Run) -> int:
    """Print a run's line; return how many of its answers differ."""
    num_same = sum(one == other for one, other in zip(run.answers, plain.answers, strict=True))
    num_all = len(plain.answers)
    share = f"{run.num_accepted} ({run.num_accepted / max(run.num_drafts, 1):4.0%})"
    identical = f"{num_same}/{num_all}"
    print(f"{name:12} {batch:7}  {identical:>9}  {run.num_drafts:8}  {share:>14}  {run.seconds:7.1f}", flush=True)
    return num_all - num_same


if __name__ == "__main__":
    sys.exit(main())
