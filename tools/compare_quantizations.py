"""Compare formats of one model: `python -m tools.compare_quantizations [MODEL] [--formats int4 fp8]`.

Perplexity on a fixed text, as each format is served and on the reference kernels, beside that of the bf16 weights in
float32; bytes of the loaded weights; and how much faster one stream is with 4-bit weights than with bf16 ones, measured
in turns in the same run. Exit code 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.quantization.requested import apply_requested
from pagewire.checkpoint.resolve import resolve_model
from pagewire.frontend.bench.text_table import text_table
from pagewire.frontend.offline.llm import LLM
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.weights import load_weights
from pagewire.ipc.sampling_params import SamplingParams
from tools.perplexity import BASE_OPTIONS, TEXT, token_logprobs
from tools.quantized_variants import Kind, Variant, export_gguf, make_variants

# Percent of perplexity that may be lost, beside the base.
LIMITS: dict[Kind, float] = {"plain": 1.0, "8-bit": 0.5, "fp8": 2.0, "4-bit": 6.0}
# Tokens a second of 4-bit weights, beside bf16.
LEAST_SPEEDUP = 1.8
_PROMPT = "The history of the printing press begins"
# A step on the reference kernels takes long beside other work, and is no stall.
SERVED: dict[str, Any] = {"max_model_len": 4096, "stall_limit": 600.0}  # Any: as `LLM` takes them


def main() -> int:
    """Make, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="SmolLM2-135M-Instruct", help="a GGUF model or a plain directory")
    parser.add_argument("--formats", nargs="+", default=[], metavar="WORD", help="only formats with one in their name")
    parser.add_argument("--kernels", nargs="+", default=["cpu", "reference"])
    parser.add_argument("--tokens", type=int, help="only so many tokens of the text")
    parser.add_argument("--calibrate", type=Path, help="a text, not the one measured: calibrated formats are added")
    parser.add_argument("--directory", type=Path, help="keep what is made there; default: a temporary one")
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison of speed; 0: none")
    parser.add_argument("--speed-tokens", type=int, default=128, help="of each answer in it")
    args = parser.parse_args()
    with ExitStack() as stack:
        directory = args.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        base, gguf = prepare_base(args.model, directory)
        variants = [Variant("bf16", "plain", base), *make_variants(base, gguf, directory, args.formats, args.calibrate)]
        is_met = compare_perplexity(base, variants, args.kernels, args.tokens)
        if args.rounds:
            is_met &= compare_speed(variants, args.rounds, args.speed_tokens)
    return 0 if is_met else 1


def prepare_base(name: str, directory: Path) -> tuple[Path, Path | None]:
    """Return the model as a plain directory, and as a GGUF file if it is one."""
    model = resolve_model(name)
    if model.file_format != "gguf":
        return model.path, None
    base = directory / "bf16"
    if not (base / "config.json").exists():
        export_gguf(model.path, base)
    return base, model.path


def compare_perplexity(base: Path, variants: Sequence[Variant], kernels: Sequence[str], num_tokens: int | None) -> bool:
    """Print a table; return whether every limit is met on the kernels that were asked for."""
    text = TEXT.read_text(encoding="utf-8")
    reference = perplexity(base, text, num_tokens, BASE_OPTIONS)
    print(f"bf16 weights in float32 on the reference kernels: perplexity {reference:.4f}", flush=True)
    rows, is_met = [], True
    for variant in variants:
        cells = []
        for name in kernels:
            found = perplexity(variant.path, text, num_tokens, {**variant.options, "kernels": name})
            change = 100 * (found / reference - 1)
            is_met &= change <= LIMITS[variant.kind]
            cells += [f"{found:.4f}", f"{change:+.2f} %"]
        rows.append([variant.name, f"{loaded_bytes(variant) / 1e6:.1f}", *cells, f"{LIMITS[variant.kind]:g} %"])
        print("  ".join(rows[-1]), flush=True)
    header = ["format", "MB loaded", *(cell for name in kernels for cell in (name, "change")), "limit"]
    print(text_table(header, rows))
    return is_met


def perplexity(path: Path, text: str, num_tokens: int | None, options: dict[str, Any]) -> float:
    """Return that of the text, as the options have the model served."""
    logprobs = token_logprobs(str(path), text, num_tokens, {**SERVED, **options})
    return math.exp(-sum(logprobs) / len(logprobs))


def loaded_bytes(variant: Variant) -> int:
    """Return what the weights take in the layouts of the compiled kernels, as the loader counts them."""
    config = apply_requested(load_model_config(variant.path), variant.options.get("quantization"))
    model = build_model(config, select_ops("cpu"), dtype=None, device=torch.device("cpu"), max_model_len=1)
    counted: list[int] = []
    load_weights(model, config, check_size=counted.append)
    return counted[0]


def compare_speed(variants: Sequence[Variant], rounds: int, num_tokens: int) -> bool:
    """Print how fast one stream is with each 4-bit format, in turns with bf16; return whether all are fast enough."""
    compared = [variant for variant in variants if variant.kind in ("plain", "4-bit")]
    best = dict.fromkeys((variant.name for variant in compared), 0.0)
    with ExitStack() as stack:
        engines = {
            variant.name: stack.enter_context(
                LLM(model=str(variant.path), kernels="cpu", max_model_len=512, num_gpu_blocks_override=64)
            )
            for variant in compared
        }
        for _ in range(rounds):
            for name, llm in engines.items():
                best[name] = max(best[name], tokens_per_s(llm, num_tokens))
    base = best["bf16"]
    print(
        text_table(["one stream", "tokens/s", "x bf16"], [[n, f"{v:.1f}", f"{v / base:.2f}"] for n, v in best.items()])
    )
    return all(best[variant.name] >= LEAST_SPEEDUP * base for variant in compared if variant.kind == "4-bit")


def tokens_per_s(llm: LLM, num_tokens: int) -> float:
    """Return the rate of decoding: the time of the prompt is taken off by a second, one-token answer."""
    times = []
    for count in (1, num_tokens):
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        started = time.perf_counter()
        llm.generate(_PROMPT, params, use_tqdm=False)
        times.append(time.perf_counter() - started)
    return (num_tokens - 1) / (times[1] - times[0])


if __name__ == "__main__":
    sys.exit(main())
