"""Check that a model answers alike however it is spread: `python -m tools.check_layouts [--families llama mixtral]`.

Real engines of tiny checkpoints of every family, plain and quantized, answer the same prompts, greedy and seeded at
temperature 1: in one process, and in each layout of ranks that share layers (tp) and of pipeline stages (pp). Plain
fp32 weights must give the same token ids in all layouts. Quantized ones round activations too, so a sum in another
order may fall to the other side of a step: their logits of the prompts must agree within `MAX_ERROR`. Within one layout
a request's ids and the fp32 bits of its logprobs must be the same in any batch. Exit code 1: something is not so.

`--model MODEL --layouts 3x1 1x2` checks one model instead. Each rank of each layout is a process that imports torch:
all of it takes minutes.
"""

from __future__ import annotations

import argparse
import math
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pagewire.frontend.offline.llm import LLM
from pagewire.frontend.offline.outputs import Logprob, RequestOutput
from pagewire.gpu_executor import quantize_checkpoint
from pagewire.ipc.sampling_params import SamplingParams
from tools.prompts import PROMPTS
from tools.tiny_model.gguf_writer import write_gguf
from tools.tiny_model.hugging_face import write_hugging_face
from tools.tiny_model.spec import FAMILIES, TinyModelSpec

MAX_ERROR = 0.07
"""Of a quantized model's logits between layouts, relative to the largest; tests hold its kernels to the same."""
ALTERNATIVES = 20  # of each prompt position that are compared
ALONE = 3  # prompts that are also asked by themselves
AT_ONCE = 7  # requests of each small batch

# Three layers and 509 token ids are cut unevenly; of 4 ranks, two hold the same KV head.
_SHAPE: dict[str, Any] = {"num_layers": 3, "vocab_size": 509}  # Any: fields of TinyModelSpec
_OF_FAMILY: dict[str, dict[str, Any]] = {
    "gemma2": {"sliding_window": 24, "attention_soft_cap": 1.5, "logit_soft_cap": 2.0},
    "gemma3": {"sliding_window": 24, "sliding_window_pattern": 2},
    "granite": {"attention_bias": True, "mlp_bias": True, "logits_scaling": 8.0},
    "mistral": {"sliding_window": 24},
    "phi3": {"sliding_window": 24, "partial_rotary_factor": 0.75},
    "qwen3_moe": {"dense_layers": (0,)},
}
# Wide enough that K-quants' blocks of 256 values lie in a row.
_QUANTIZED_SHAPE: dict[str, Any] = {**_SHAPE, "hidden_size": 256, "num_heads": 8, "head_dim": 32}
_QUANTIZED = {"int4": ["int4"], "int4 gptq": ["int4", "--format=gptq"], "int8": ["int8"], "fp8": ["fp8"]}
_GGUF_TYPES = ("Q4_0", "Q4_K", "Q8_0")


class Layout(NamedTuple):
    """So many ranks share each layer, in so many stages."""

    tp: int
    pp: int

    def __str__(self) -> str:
        return f"{self.tp}x{self.pp}"

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read 4x2."""
        tp, _, pp = text.partition("x")
        return cls(int(tp), int(pp))


class Case(NamedTuple):
    """A checkpoint, and what is asked of its layouts."""

    name: str
    model: str
    is_quantized: bool
    divides_experts: bool = False


class Answers(NamedTuple):
    """What one layout made of the prompts.

    Attributes:
        prompts: of each prompt, each position's alternatives.
        requests: of each greedy and each seeded request, its token ids and its logprobs as fp32 bits.
        num_differing: requests that had other bits in another batch.
    """

    prompts: list[list[dict[int, float]]]
    requests: list[tuple[list[int], list[bytes]]]
    num_differing: int


def main() -> int:
    """Print a line a checkpoint and layout."""
    args = _parse()
    failures = 0
    print(f"{'':18} layout  same ids   logits: error, same best   in any batch", flush=True)
    with tempfile.TemporaryDirectory(prefix="layouts-") as directory:
        for case in _cases(args, Path(directory)):
            whole = _answer(case, Layout(1, 1), args)
            failures += _report(case, Layout(1, 1), whole, whole, 0.0)
            for layout in args.layouts:
                started = time.perf_counter()
                answers = _answer(case, layout, args)
                failures += _report(case, layout, answers, whole, time.perf_counter() - started)
    print("all layouts agree" if not failures else f"{failures} lines do not hold")
    return int(failures > 0)


def _cases(args: argparse.Namespace, directory: Path) -> Iterator[Case]:
    """Yield the checkpoints, each when it is written."""
    if args.model is not None:
        yield Case(Path(args.model).name, args.model, args.quantized)
        return
    for family in args.families:
        spec = msgspec.convert({"family": family, **_SHAPE, **_OF_FAMILY.get(family, {})}, TinyModelSpec)
        path = str(write_hugging_face(spec, directory / family))
        yield Case(family, path, is_quantized=False)
        if spec.mixture_layers:
            yield Case(f"{family} whole", path, is_quantized=False, divides_experts=True)
    if args.quantized:
        yield from _quantized_cases(directory)


def _quantized_cases(directory: Path) -> Iterator[Case]:
    spec = msgspec.convert({"family": "llama", **_QUANTIZED_SHAPE}, TinyModelSpec)
    plain = write_hugging_face(spec, directory / "plain")
    for name, flags in _QUANTIZED.items():
        target = str(directory / name.replace(" ", "-"))
        if quantize_checkpoint.main(["--to", *flags, "--out", target, str(plain)]):
            raise RuntimeError(f"quantize --to {' '.join(flags)} failed")
        yield Case(name, target, is_quantized=True)
    for quant in _GGUF_TYPES:
        write_gguf(spec, directory / f"{quant}.gguf", quant)
        yield Case(quant, str(directory / f"{quant}.gguf"), is_quantized=True)


def _answer(case: Case, layout: Layout, args: argparse.Namespace) -> Answers:
    """Run an engine, and ask all prompts in several companies."""
    prompts = PROMPTS[: args.prompts]
    with LLM(
        case.model,
        tensor_parallel_size=layout.tp,
        pipeline_parallel_size=layout.pp,
        dtype="float32",
        max_model_len=512,
        num_gpu_blocks_override=2048,
        max_num_batched_tokens=128,
        stall_limit=600.0,  # a loaded machine
        log_level="warning",
        enable_expert_parallel=case.divides_experts and layout.tp > 1,
    ) as llm:
        probe = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=ALTERNATIVES)
        of_prompts = [_alternatives(output) for output in llm.generate(prompts, probe, use_tqdm=False)]
        asked = [*prompts, *prompts]
        params = [
            _params(index, is_seeded, args.tokens) for is_seeded in (False, True) for index in range(len(prompts))
        ]

        def ask(chosen: Sequence[int]) -> dict[int, tuple[list[int], list[bytes]]]:
            outputs = llm.generate([asked[i] for i in chosen], [params[i] for i in chosen], use_tqdm=False)
            return {index: _bits(output) for index, output in zip(chosen, outputs, strict=True)}

        together = ask(range(len(asked)))
        alone = [ask([index]) for index in range(0, len(asked), math.ceil(len(asked) / ALONE))]
        in_reverse = list(reversed(range(len(asked))))
        small = [ask(in_reverse[first : first + AT_ONCE]) for first in range(0, len(asked), AT_ONCE)]
        differing = {i for batch in (*alone, *small) for i, answer in batch.items() if answer != together[i]}
    return Answers(of_prompts, [together[index] for index in range(len(asked))], len(differing))


def _params(index: int, is_seeded: bool, num_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=1.0 if is_seeded else 0.0, seed=index, max_tokens=num_tokens, ignore_eos=True, logprobs=1
    )


def _alternatives(output: RequestOutput) -> list[dict[int, float]]:
    assert output.prompt_logprobs is not None
    return [{token: entry.logprob for token, entry in place.items()} for place in output.prompt_logprobs if place]


def _bits(output: RequestOutput) -> tuple[list[int], list[bytes]]:
    completion = output.outputs[0]
    assert completion.logprobs is not None
    places: Iterator[tuple[int, dict[int, Logprob]]] = zip(completion.token_ids, completion.logprobs, strict=True)
    return list(completion.token_ids), [struct.pack("<f", place[token].logprob) for token, place in places]


def compare_logits(whole: list[list[dict[int, float]]], other: list[list[dict[int, float]]]) -> tuple[float, int, int]:
    """Compare the alternatives of each position of each prompt: token id -> logprob.

    Logprobs are logits but for a constant of their position, which goes with the mean of the tokens that both list.

    Returns:
        The largest difference, relative to the largest of the centred logits; positions with the same best token; and
        all positions.
    """
    difference = largest = 0.0
    num_same = num_places = 0
    for mine, theirs in zip(whole, other, strict=True):
        for place, their_place in zip(mine, theirs, strict=True):
            both = sorted(place.keys() & their_place.keys())
            centre = statistics.fmean(place[token] for token in both)
            their_centre = statistics.fmean(their_place[token] for token in both)
            for token in both:
                logit, their_logit = place[token] - centre, their_place[token] - their_centre
                difference = max(difference, abs(logit - their_logit))
                largest = max(largest, abs(logit))
            num_same += max(place, key=place.__getitem__) == max(their_place, key=their_place.__getitem__)
            num_places += 1
    return difference / largest if largest else 0.0, num_same, num_places


def holds(case: Case, answers: Answers, whole: Answers) -> bool:
    """Whether a layout gives what it must, beside what the whole model in one process gave."""
    if case.is_quantized:
        agrees = compare_logits(whole.prompts, answers.prompts)[0] <= MAX_ERROR
    else:
        agrees = _num_same_ids(answers, whole) == len(whole.requests)
    return agrees and not answers.num_differing


def _num_same_ids(answers: Answers, whole: Answers) -> int:
    return sum(mine[0] == theirs[0] for mine, theirs in zip(answers.requests, whole.requests, strict=True))


def _report(case: Case, layout: Layout, answers: Answers, whole: Answers, seconds: float) -> bool:
    """Print a line; return whether something in it does not hold."""
    num_requests = len(answers.requests)
    error, num_same_best, num_places = compare_logits(whole.prompts, answers.prompts)
    is_right = holds(case, answers, whole)
    print(
        f"{case.name:18} {layout!s:6} {_num_same_ids(answers, whole):4}/{num_requests:<4}"
        f"   {error:8.1e} {num_same_best:6}/{num_places:<6}"
        f" {num_requests - answers.num_differing:6}/{num_requests:<4} {seconds:6.1f} s{'' if is_right else '  NO'}",
        flush=True,
    )
    return not is_right


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", nargs="*", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument(
        "--quantized",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also quantized ones; of --model: hold it to what they are held to",
    )
    parser.add_argument("--model", help="instead of tiny checkpoints")
    parser.add_argument(
        "--layouts", nargs="+", type=Layout.parse, default=[Layout(2, 1), Layout(4, 1), Layout(1, 2), Layout(2, 2),
        Layout(4, 2)], metavar="TPxPP"
    )  # fmt: skip
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=16, help="of each answer")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
