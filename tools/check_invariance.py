"""Check that a request's answer does not depend on its company: `python -m tools.check_invariance`.

Half of the prompts are greedy, half seeded at temperature 1. Token ids and the fp32 bits of their logprobs are compared
with those of each request run alone: in batches, with several token budgets, prefix cache off and warm, a pool so
small that requests are preempted, one step ahead on and off, and through HTTP, LLM and EngineClient.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pagewire.frontend.client.sync_client import EngineClient
from pagewire.frontend.offline.llm import LLM
from pagewire.frontend.offline.outputs import RequestOutput
from pagewire.frontend.supervisor.engine_process import EngineProcess, prepare_engine
from pagewire.ipc.config import CacheConfig, EngineConfig, ModelOptions, SchedulerConfig
from pagewire.ipc.sampling_params import SamplingParams
from tools.prompts import PROMPTS
from tools.serving import serving

Answer = tuple[list[int], list[bytes]]  # token ids, and their logprobs as fp32 bits


def main() -> int:
    """Run every configuration, print one line each, return 0 if all answers are the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--max-model-len", type=int, default=512)
    parser.add_argument("--small-pool", type=int, default=40, help="KV blocks, so few that requests are preempted")
    args = parser.parse_args()
    prompts = PROMPTS[: args.prompts]
    params = [make_params(index, args.tokens) for index in range(len(prompts))]
    base: dict[str, Any] = {"model": args.model, "max_model_len": args.max_model_len}  # Any: keyword arguments of LLM
    with LLM(**base, enable_prefix_caching=False) as llm:
        outputs = [llm.generate(prompt, p, use_tqdm=False)[0] for prompt, p in zip(prompts, params, strict=True)]
    alone = [answer_of(output) for output in outputs]
    expected_ids = [output.prompt_token_ids for output in outputs]
    failures = 0
    for name, run in configurations(base, prompts, params, expected_ids, args.small_pool):
        started = time.perf_counter()
        answers, note = run()
        differing = sum(a != b for a, b in zip(alone, answers, strict=True))
        failures += differing
        seconds = time.perf_counter() - started
        print(f"{name:36} {len(answers) - differing}/{len(answers)} identical  {seconds:6.1f} s  {note}", flush=True)
    print("all answers are bit-identical" if not failures else f"{failures} answers differ")
    return 1 if failures else 0


def make_params(index: int, num_tokens: int) -> SamplingParams:
    """Greedy for even prompts, seeded at temperature 1 for odd ones."""
    temperature = 0.0 if index % 2 == 0 else 1.0
    return SamplingParams(temperature=temperature, seed=index, max_tokens=num_tokens, ignore_eos=True, logprobs=1)


def bits(logprob: float) -> bytes:
    """The fp32 bits of a logprob."""
    return struct.pack("<f", logprob)


def answer_of(output: RequestOutput) -> Answer:
    """What must not change."""
    completion = output.outputs[0]
    assert completion.logprobs is not None
    entries = zip(completion.token_ids, completion.logprobs, strict=True)
    return list(completion.token_ids), [bits(entry[token].logprob) for token, entry in entries]


Run = Callable[[], tuple[list[Answer], str]]


def configurations(
    base: dict[str, Any],
    prompts: list[str],
    params: list[SamplingParams],
    prompt_ids: list[list[int]],
    small_pool: int,
) -> Iterator[tuple[str, Run]]:
    """Yield (name, run) for every way of running the same requests."""

    def offline(passes: int = 1, **options: Any) -> Run:  # Any: keyword arguments of LLM
        def run() -> tuple[list[Answer], str]:
            with LLM(**base, **options) as llm:
                for _ in range(passes):
                    outputs = llm.generate(prompts, params, use_tqdm=False)
            num_preemptions = sum(output.metrics.num_preemptions for output in outputs)
            num_cached = sum(output.num_cached_tokens for output in outputs)
            note = f"{num_preemptions} preemptions, {num_cached} prompt tokens from the cache"
            return [answer_of(output) for output in outputs], note

        return run

    yield "batch of 16", offline(max_num_seqs=16)
    for budget in (16, 64, 512):
        yield f"token budget {budget}", offline(max_num_seqs=16, max_num_batched_tokens=budget)
    yield "prefix cache off", offline(enable_prefix_caching=False)
    yield "prefix cache warm (second pass)", offline(passes=2)
    yield f"pool of {small_pool} blocks (preemption)", offline(num_gpu_blocks_override=small_pool, max_num_seqs=16)
    yield "one step ahead off", offline(async_scheduling=False)
    yield "HTTP", lambda: (over_http(base, prompts, params), "")
    yield "EngineClient", lambda: (over_client(base, prompt_ids, params), "")


def over_client(base: dict[str, Any], prompt_ids: list[list[int]], params: list[SamplingParams]) -> list[Answer]:
    """The requests through an attached client, all at once."""
    config = EngineConfig(
        model=ModelOptions(model=base["model"], max_model_len=base["max_model_len"]),
        cache=CacheConfig(),
        scheduler=SchedulerConfig(),
    )
    engine = EngineProcess(prepare_engine(config))
    try:
        with EngineClient(engine.address) as client:
            streams = [client.generate(ids, p) for ids, p in zip(prompt_ids, params, strict=True)]
            answers: list[Answer] = []
            for stream in streams:
                ids: list[int] = []
                logprobs: list[bytes] = []
                for delta in stream:
                    ids.extend(delta.token_ids)
                    logprobs.extend(bits(entry.logprob) for entry in delta.logprobs)
                answers.append((ids, logprobs))
            return answers
    finally:
        engine.stop()


def over_http(base: dict[str, Any], prompts: list[str], params: list[SamplingParams]) -> list[Answer]:
    """The requests through /v1/completions, from one thread each."""
    with (
        serving(base["model"], "--max-model-len", str(base["max_model_len"])) as server,
        ThreadPoolExecutor(len(prompts)) as pool,
    ):
        return list(pool.map(lambda pair: ask(server.url, *pair), zip(prompts, params, strict=True)))


def ask(url: str, prompt: str, params: SamplingParams) -> Answer:
    """One request over HTTP."""
    body = {
        "prompt": prompt,
        "temperature": params.temperature,
        "seed": params.seed,
        "max_tokens": params.max_tokens,
        "ignore_eos": True,
        "logprobs": 1,
        "return_token_ids": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        choice = json.load(response)["choices"][0]
    return choice["token_ids"], [bits(value) for value in choice["logprobs"]["token_logprobs"]]


if __name__ == "__main__":
    sys.exit(main())
