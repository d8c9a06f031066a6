"""Try scheduling rules without a model: `python -m tools.simulate_scheduling [--target-itl-ms 0 50 100]`.

The real engine schedules requests of closed-loop clients. An executor that computes nothing lets a virtual clock
advance by what a step of that shape would take on a small CPU. Prints what the clients see: output tokens per second,
time to the first token, time between tokens. A workload of a minute takes a second, and a run repeats exactly.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from pagewire.engine_core.engine import Engine
from pagewire.ipc.channels import ClientId
from pagewire.ipc.config import CPU_STEP_LIMITS, EngineConfig, SchedulerConfig
from pagewire.ipc.requests import AddRequest, GenerateTask, TokenInputs
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, RowResult, StepResult
from pagewire.ipc.validation import RequestLimits

CLIENT = ClientId(b"clients")
VOCAB_SIZE = 49_152
WORKLOADS = ("single", "batch", "wide", "prefix", "long", "mixed")
HOP_S = 0.003  # between a client and the core
DISPATCH_S = 0.001  # between the core's decision and the executor's first instruction


@dataclass(frozen=True)
class StepTimes:
    """What a step takes: a 135M model, 4-bit weights, two cores with AVX2.

    Reading the weights is the least that a step takes; beyond a handful of tokens they are multiplied as fast as the
    cores can, and attention goes by the positions that are attended to.
    """

    base_s: float = 0.0015
    weights_s: float = 0.005
    token_s: float = 0.0011
    draw_s: float = 0.0003
    attended_s: float = 1.1e-6
    noise: float = 0.1  # standard deviation of the logarithm

    def draw(self, step: ExecuteStep, rng: random.Random) -> float:
        """Seconds of a step."""
        num_tokens = sum(row.num_scheduled_tokens for row in step.rows)
        num_draws = sum(row.num_draws > 0 for row in step.rows)
        num_attended = sum(
            row.num_scheduled_tokens * (row.num_computed_tokens + row.num_scheduled_tokens / 2) for row in step.rows
        )
        seconds = self.base_s + max(self.weights_s, self.token_s * num_tokens)
        seconds += self.draw_s * num_draws + self.attended_s * num_attended
        return seconds * rng.lognormvariate(0, self.noise)


@dataclass
class Seen:
    """What the clients of one run saw, in seconds."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    num_tokens: int = 0
    end_s: float = 0.0


def plan(workload: str, seed: int) -> tuple[int, list[tuple[list[int], int]]]:
    """Return (clients, [(prompt, output tokens), ...])."""
    rng = random.Random(seed)

    def prompt(length: int) -> list[int]:
        return [rng.randrange(VOCAB_SIZE) for _ in range(length)]

    def size(mu: float, sigma: float, low: int, high: int) -> int:
        return int(min(high, max(low, rng.lognormvariate(mu, sigma))))

    match workload:
        case "single":
            return 1, [(prompt(128), 128) for _ in range(6)]
        case "batch":
            return 16, [(prompt(128), 128) for _ in range(48)]
        case "wide":
            return 64, [(prompt(64), 64) for _ in range(128)]
        case "prefix":
            head = prompt(512)
            return 8, [(head + prompt(32), 48) for _ in range(48)]
        case "long":
            return 2, [(prompt(3000), 16) for _ in range(6)]
        case "mixed":
            return 16, [(prompt(size(4.8, 1.0, 8, 1500)), size(4.2, 0.8, 4, 400)) for _ in range(64)]
    raise ValueError(f"no workload {workload!r}")


class Simulation:
    """Clients, engine and executor on one virtual clock."""

    def __init__(self, workload: str, config: SchedulerConfig, times: StepTimes, seed: int) -> None:
        num_clients, requests = plan(workload, seed)
        step_limits = config.step_limits("cpu")
        limits = RequestLimits(
            max_model_len=4096,
            vocab_size=VOCAB_SIZE,
            max_logprobs=20,
            has_priorities=False,
            max_num_seqs=step_limits.max_num_seqs,
        )
        self._engine = Engine(
            EngineConfig(scheduler=config), num_blocks=4096, step_limits=step_limits, limits=limits, executor_epoch=1
        )
        self._times = times
        self._rng = random.Random(seed)
        self._events: list[tuple[float, int, AddRequest | StepResult]] = []
        self._num_events = 0
        self._requests: Iterator[tuple[int, tuple[list[int], int]]] = enumerate(requests)
        self._sent_s: dict[int, float] = {}
        self._last_s: dict[int, float] = {}
        self._executor_free_s = 0.0
        self.seen = Seen()
        for _ in range(num_clients):
            self._send_next(0.0)

    def run(self) -> Seen:
        """Play it to the end."""
        while self._events:
            now, _, event = heapq.heappop(self._events)
            if isinstance(event, AddRequest):
                self._engine.add_request(CLIENT, event, now)
            else:
                self._engine.apply(event, now)
            while (step := self._engine.schedule(now)) is not None:
                self._execute(step, now)
            self._read(now)
        return self.seen

    def _execute(self, step: ExecuteStep, now: float) -> None:
        step_s = self._times.draw(step, self._rng)
        self._executor_free_s = max(now + DISPATCH_S, self._executor_free_s) + step_s
        rows = [RowResult(row_id=row.row_id, token_ids=[0] * row.num_draws) for row in step.rows if row.num_draws]
        result = StepResult(executor_epoch=step.executor_epoch, step_id=step.step_id, rows=rows, step_s=step_s)
        self._push(self._executor_free_s, result)

    def _read(self, now: float) -> None:
        outputs = self._engine.take_outputs().get(CLIENT)
        if outputs is None:
            return
        now += HOP_S
        for delta in outputs.deltas:
            last_s = self._last_s.get(delta.request_id)
            if last_s is None:
                self.seen.first.append(now - self._sent_s[delta.request_id])
            else:
                self.seen.between.append(now - last_s)
            self._last_s[delta.request_id] = now
            self.seen.num_tokens += len(delta.token_ids)
            self.seen.end_s = now
        for _ in outputs.ends:
            self._send_next(now)

    def _send_next(self, now: float) -> None:
        request_id, (prompt, num_tokens) = next(self._requests, (-1, ([], 0)))
        if request_id < 0:
            return
        self._sent_s[request_id] = now
        task = GenerateTask(sampling=Sampling(seed=0), max_tokens=num_tokens)
        request = AddRequest(request_id=request_id, inputs=TokenInputs(prompt_token_ids=prompt), task=task)
        self._push(now + HOP_S, request)

    def _push(self, at_s: float, event: AddRequest | StepResult) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (at_s, self._num_events, event))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument("--target-itl-ms", type=float, nargs="+", default=[SchedulerConfig().target_itl_ms])
    parser.add_argument("--max-num-batched-tokens", type=int, default=CPU_STEP_LIMITS.max_num_batched_tokens)
    parser.add_argument("--noise", type=float, default=StepTimes().noise)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9], help="the runs of a line, averaged")
    args = parser.parse_args()
    print("workload  target  tokens/s  TTFT p50      p99  ITL p50      p99  ratio")
    for workload in args.workloads:
        for target in args.target_itl_ms:
            config = SchedulerConfig(
                target_itl_ms=target,
                max_num_batched_tokens=args.max_num_batched_tokens,
                max_waiting_requests=0,
                max_waiting_tokens=0,
            )
            runs = [Simulation(workload, config, StepTimes(noise=args.noise), seed).run() for seed in args.seeds]
            print(f"{workload:8} {target:7g} {_row(runs)}", flush=True)
    return 0


def _row(runs: list[Seen]) -> str:
    def mean_ms(lists: list[list[float]], share: float) -> float:
        return 1000 * sum(sorted(values)[int(share * (len(values) - 1))] for values in lists) / len(lists)

    first, between = [seen.first for seen in runs], [seen.between for seen in runs]
    rate = sum(seen.num_tokens / seen.end_s for seen in runs) / len(runs)
    typical, rare = mean_ms(between, 0.5), mean_ms(between, 0.99)
    return (
        f"{rate:9.1f} {mean_ms(first, 0.5):9.1f} {mean_ms(first, 0.99):8.1f} "
        f"{typical:8.1f} {rare:8.1f} {rare / typical:6.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
