"""Compare the perplexity of kernels on a text: `python -m tools.perplexity [MODEL] [--kernels cpu]`.

Perplexity is exp of the mean negative log-probability of each token after those before it. The base is the model
unpacked to float32, KV cache too, on the reference kernels; the kernels under test run as they are served.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

from pagewire.frontend.offline.llm import LLM
from pagewire.ipc.sampling_params import SamplingParams

TEXT = Path(__file__).parent.parent / "tests" / "data" / "perplexity.txt"
BASE_OPTIONS = {"kernels": "reference", "dtype": "float32", "kv_cache_dtype": "float32"}


def main() -> int:
    """Print both perplexities and their ratio; return 1 if it is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="SmolLM2-135M-Instruct")
    parser.add_argument("--kernels", default="auto", help="what is compared with the reference")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--tokens", type=int, help="only so many tokens of the text")
    parser.add_argument("--limit", type=float, default=1.0, help="percent that may be lost")
    args = parser.parse_args()
    text = args.text.read_text(encoding="utf-8")
    base = report("reference, fp32", args.model, text, args.tokens, BASE_OPTIONS)
    tested = report(f"{args.kernels}, as served", args.model, text, args.tokens, {"kernels": args.kernels})
    change = 100 * (tested / base - 1)
    print(f"difference {change:+.3f} % (limit {args.limit:g} %)")
    return 0 if change <= args.limit else 1


def report(label: str, model: str, text: str, num_tokens: int | None, options: dict[str, Any]) -> float:
    """Measure, print one line, return the perplexity."""
    started = time.perf_counter()
    logprobs = token_logprobs(model, text, num_tokens, options)
    perplexity = math.exp(-sum(logprobs) / len(logprobs))
    seconds = time.perf_counter() - started
    print(f"{label:<24} perplexity {perplexity:.4f} over {len(logprobs)} tokens ({seconds:.1f} s)", flush=True)
    return perplexity


def token_logprobs(model: str, text: str, num_tokens: int | None, options: dict[str, Any]) -> list[float]:
    """Return the log-probability of each token of the text but the first, which nothing precedes."""
    with LLM(model=model, **options) as llm:
        token_ids = llm.get_tokenizer().encode(text, add_special_tokens=True)[:num_tokens]
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        (output,) = llm.generate([{"prompt_token_ids": token_ids}], params, use_tqdm=False)
    entries = output.prompt_logprobs
    assert entries is not None
    return [entry[token_id].logprob for token_id, entry in zip(token_ids, entries, strict=True) if entry is not None]


if __name__ == "__main__":
    sys.exit(main())
