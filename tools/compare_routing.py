"""Compare routing by cached prefix with round robin: `python -m tools.compare_routing [MODEL]`.

Users who share prompts' heads ask two or more real cores of one engine, in an order that is the same for both routers.
Prints of each how many prompt tokens came from prefix caches, and how requests and computed tokens were divided: none
of the cores must idle. Exit code 1 if routing by prefix finds no more than round robin, or leaves a core with less than
a quarter of its fair share of the requests.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pagewire.frontend.cli.flags import build_engine_config
from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.frontend.client.router import PrefixRouter
from pagewire.frontend.supervisor.engine_process import prepare_engine, start_cores, stop_cores
from pagewire.ipc.outputs import CoreKey, StepStats
from pagewire.ipc.sampling_params import SamplingParams

FAIR_SHARE = 0.25


class CountingRouter(PrefixRouter):
    """Routes by prefix, and counts the requests of each core."""

    def __init__(self, num_cores: int, block_size: int, clock: Callable[[], float]) -> None:
        super().__init__(num_cores, block_size, clock)
        self.num_requests = [0] * num_cores

    def place(self, request_id: int, keys: Sequence[int], num_tokens: int, available: Sequence[int]) -> int:
        """Choose, and count."""
        index = super().place(request_id, keys, num_tokens, available)
        self.num_requests[index] += 1
        return index


class RoundRobinRouter(CountingRouter):
    """Gives each core a request in turn, whatever it holds."""

    def choose(self, keys: Sequence[int], available: Sequence[int]) -> int:
        """Choose the next core."""
        return min(available, key=lambda core: (self.num_requests[core], core))


@dataclass
class Outcome:
    """What one router made of the requests.

    Attributes:
        num_requests: by core.
        num_computed_tokens: of prompts, by core.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    seconds: float = 0.0
    first_token_s: list[float] = field(default_factory=list)
    num_requests: list[int] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)

    def describe(self, name: str) -> str:
        """Return its line."""
        share = self.num_cached_tokens / self.num_prompt_tokens
        first_ms = 1000 * sum(self.first_token_s) / len(self.first_token_s)
        return (
            f"{name:12} {self.num_cached_tokens:6} of {self.num_prompt_tokens} prompt tokens cached ({share:.0%}), "
            f"{self.seconds:5.1f} s, first token after {first_ms:5.0f} ms, requests a core {self.num_requests}, "
            f"prompt tokens computed a core {self.num_computed_tokens}"
        )


def main() -> int:
    """Print the figures."""
    args = _parse()
    config = prepare_engine(
        build_engine_config(
            {"model": args.model, "data_parallel_size": args.cores, "max_model_len": args.prefix_tokens + 256,
             "log_level": "warning"}
        )
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="routing-") as directory:
        address = f"ipc://{Path(directory) / 'core.sock'}"
        cores = start_cores(config, address=address)
        try:
            by_prefix = asyncio.run(measure(address, CountingRouter, args))
            in_turn = asyncio.run(measure(address, RoundRobinRouter, args))
        finally:
            stop_cores(cores)
    print(f"{args.prefixes} prefixes of {args.prefix_tokens} tokens x {args.users} users, {args.at_once} at once:")
    print(by_prefix.describe("by prefix"))
    print(in_turn.describe("round robin"))
    fewest = min(by_prefix.num_requests)
    has_starved = fewest < FAIR_SHARE * args.prefixes * args.users / args.cores
    return int(has_starved or by_prefix.num_cached_tokens <= in_turn.num_cached_tokens)


async def measure(address: str, router_type: type[CountingRouter], args: argparse.Namespace) -> Outcome:
    """Ask all that the users want to know, through one router and with empty caches."""
    routers: list[CountingRouter] = []

    def make_router(num_cores: int, block_size: int, clock: Callable[[], float]) -> CountingRouter:
        routers.append(router_type(num_cores, block_size, clock))
        return routers[0]

    client = await AsyncEngineClient.connect(address, name="routing", timeout_s=600, make_router=make_router)
    async with client:
        await client.call_utility("reset_prefix_cache")
        latest: dict[int, StepStats] = {}

        def note(rank: int, core: CoreKey, stats: StepStats) -> None:
            del core
            latest[rank] = stats

        client.add_core_listener(note)
        # The first step of each core brings its counters.
        await asyncio.gather(*(_ask(client, [1 + index] * 8, Outcome()) for index in range(args.cores)))
        before = dict(latest)
        at_first = list(routers[0].num_requests)
        outcome = Outcome()
        gate = asyncio.Semaphore(args.at_once)

        async def ask(prompt: list[int]) -> None:
            async with gate:
                await _ask(client, prompt, outcome)

        started = time.perf_counter()
        await asyncio.gather(*(ask(prompt) for prompt in prompts(client.info.vocab_size, args)))
        outcome.seconds = time.perf_counter() - started
        outcome.num_requests = [now - then for now, then in zip(routers[0].num_requests, at_first, strict=True)]
        for rank in range(args.cores):
            num_prompt = latest[rank].num_prompt_tokens - before[rank].num_prompt_tokens
            num_cached = latest[rank].prefix_cache_hits - before[rank].prefix_cache_hits
            outcome.num_computed_tokens.append(num_prompt - num_cached)
        return outcome


def prompts(vocab_size: int, args: argparse.Namespace) -> list[list[int]]:
    """The users' prompts: a head that some share, and a question of each one's own; in a drawn order."""
    draws = random.Random(args.seed)

    def tokens(count: int) -> list[int]:
        return [draws.randrange(3, min(vocab_size, 40_000)) for _ in range(count)]

    heads = [tokens(args.prefix_tokens) for _ in range(args.prefixes)]
    asked = [head + tokens(24) for head in heads for _ in range(args.users)]
    draws.shuffle(asked)
    return asked


async def _ask(client: AsyncEngineClient, prompt: list[int], outcome: Outcome) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    async with client.generate(prompt, params) as stream:
        async for _ in stream:
            pass
        assert stream.start is not None
        assert stream.first_token_at is not None
        outcome.num_prompt_tokens += len(prompt)
        outcome.num_cached_tokens += stream.start.num_cached_tokens
        outcome.first_token_s.append(stream.first_token_at - stream.submitted_at)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="SmolLM2-135M-Instruct")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--prefixes", type=int, default=8)
    parser.add_argument("--users", type=int, default=4, help="of each prefix")
    parser.add_argument("--prefix-tokens", type=int, default=192)
    parser.add_argument("--at-once", type=int, default=8, help="requests under way")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
