"""Compare scheduling one step ahead with scheduling in turn: `python -m tools.compare_scheduling [MODEL]`.

Both engines run at once, each in its own processes, and take turns at the same requests, so that a machine whose speed
drifts slows both alike. Prints output tokens per second of each round and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from pagewire.frontend.offline.llm import LLM
from pagewire.ipc.sampling_params import SamplingParams
from tools.prompts import PROMPTS


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="SmolLM2-135M-Instruct")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16], help="sizes of the batch")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    options = {"model": args.model, "max_model_len": 256, "enable_prefix_caching": False}
    with (
        LLM(**options, async_scheduling=True, num_gpu_blocks_override=600) as ahead,
        LLM(**options, async_scheduling=False, num_gpu_blocks_override=600) as in_turn,
    ):
        for num_requests in args.requests:
            rates: dict[str, list[float]] = {"one step ahead": [], "in turn": []}
            for _ in range(args.rounds):
                for name, llm in (("one step ahead", ahead), ("in turn", in_turn)):
                    rates[name].append(output_rate(llm, num_requests, args.tokens))
            medians = {name: statistics.median(values) for name, values in rates.items()}
            for name, values in rates.items():
                rounds = " ".join(f"{value:.1f}" for value in values)
                print(f"{num_requests:4} requests, {name:15} {medians[name]:8.1f} tokens/s   ({rounds})")
            print(f"{num_requests:4} requests, ratio {medians['one step ahead'] / medians['in turn']:.3f}")
    return 0


def output_rate(llm: LLM, num_requests: int, num_tokens: int) -> float:
    """Output tokens per second of one batch."""
    prompts = [PROMPTS[index % len(PROMPTS)][:40] for index in range(num_requests)]
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    started = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return num_requests * num_tokens / (time.perf_counter() - started)


if __name__ == "__main__":
    sys.exit(main())
