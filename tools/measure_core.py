"""Measure the engine core's share of a step: `python -m tools.measure_core [--requests 256] [--profile]`.

The body of the core's loop runs between real ZeroMQ sockets: decode a result, commit it, schedule, encode and send the
next step, encode and send the outputs. The executor computes nothing; its turns and the client's lie outside of the
clock. Prints the thread's processor time, which other processes of a busy machine disturb least.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import statistics
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import zmq

from pagewire.engine_core.clients.registry import ClientRegistry
from pagewire.engine_core.engine import Engine
from pagewire.ipc.channels import ClientRouter, PairChannel, bind_core, connect_executor
from pagewire.ipc.codec import PROTOCOL_VERSION, encode
from pagewire.ipc.config import EngineConfig, SchedulerConfig
from pagewire.ipc.requests import AddRequest, GenerateTask, Hello, TokenInputs
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, FromExecutor, RowResult, StepResult, ToExecutor
from pagewire.ipc.validation import RequestLimits

VOCAB_SIZE = 49_152
MAX_MODEL_LEN = 4096
STEP_S = 0.1  # what a step says that it took


@dataclass
class Core:
    """An engine with its sockets, and the other ends of these."""

    engine: Engine
    router: ClientRouter
    clients: ClientRegistry
    to_executor: PairChannel[FromExecutor]
    executor: PairChannel[ToExecutor]
    client: zmq.Socket[bytes]
    results: deque[StepResult]

    def dispatch(self) -> None:
        """As the core's loop does it."""
        now = time.monotonic()
        while self.engine.can_schedule():
            step = self.engine.schedule(now)
            if step is None:
                return
            self.to_executor.send(step)

    def take_result(self) -> None:
        """As the core's loop does it when a step is back."""
        now = time.monotonic()
        result = self.to_executor.try_recv()
        assert isinstance(result, StepResult)
        self.engine.apply(result, now)
        self.dispatch()
        for client, message in self.engine.take_outputs().items():
            self.clients.send(client, message, now)
        self.clients.ping(self.engine.live_clients(), now)

    def execute(self) -> None:
        """The executor's turn: answer every step that came."""
        self.executor.socket.poll()
        while (message := self.executor.try_recv()) is not None:
            assert isinstance(message, ExecuteStep)
            rows = [RowResult(row_id=row.row_id, token_ids=[7] * row.num_draws) for row in message.rows]
            self.results.append(StepResult(executor_epoch=1, step_id=message.step_id, rows=rows, step_s=STEP_S))

    def read_outputs(self) -> None:
        """The client's turn."""
        while self.client.poll(0):
            self.client.recv()


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64, 256], help="requests that run at once")
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--profile", action="store_true", help="also print where the time goes")
    args = parser.parse_args()
    for num_requests in args.requests:
        profiler = cProfile.Profile() if args.profile else None
        times_ms = [seconds * 1000 for seconds in measure(num_requests, args.prompt_tokens, args.steps, profiler)]
        print(
            f"{num_requests:4} requests: {statistics.median(times_ms):6.3f} ms of processor time a step "
            f"(best {min(times_ms):.3f}, p90 {sorted(times_ms)[int(0.9 * len(times_ms))]:.3f})"
        )
        if profiler is not None:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    return 0


def measure(
    num_requests: int, num_prompt_tokens: int, num_steps: int, profiler: cProfile.Profile | None
) -> list[float]:
    """Return the processor seconds of each step in which all requests decode."""
    with tempfile.TemporaryDirectory() as directory:
        core = _start(num_requests, num_prompt_tokens, Path(directory))
        core.dispatch()
        while core.engine.stats.num_generation_tokens < num_requests * 3:
            _turn(core)
        gc.collect()
        gc.freeze()
        times: list[float] = []
        for _ in range(num_steps):
            times.append(_turn(core, profiler))
        core.router.close()
        for socket in (core.to_executor.socket, core.executor.socket, core.client):
            socket.close()
        return times


def _turn(core: Core, profiler: cProfile.Profile | None = None) -> float:
    if not core.results:
        core.execute()
    core.executor.send(core.results.popleft())
    core.to_executor.socket.poll()
    if profiler is not None:
        profiler.enable()
    started = time.thread_time()
    core.take_result()
    seconds = time.thread_time() - started
    if profiler is not None:
        profiler.disable()
    core.read_outputs()
    return seconds


def _start(num_requests: int, num_prompt_tokens: int, directory: Path) -> Core:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    executor_address, address = f"ipc://{directory}/executor.sock", f"ipc://{directory}/core.sock"
    executor = bind_core(context, executor_address)
    to_executor = connect_executor(context, executor_address)
    router = ClientRouter(context, address)
    client = context.socket(zmq.DEALER)
    client.connect(address)
    client.send(encode(Hello(protocol_version=PROTOCOL_VERSION)))
    router.socket.poll()
    received = router.try_recv()
    assert received is not None
    client_id, hello = received
    clients = ClientRegistry(router)
    assert isinstance(hello, Hello)
    clients.greet(client_id, hello, time.monotonic())
    core = Core(_engine(num_requests), router, clients, to_executor, executor, client, deque())
    for request_id in range(num_requests):
        core.engine.add_request(client_id, _request(request_id, num_prompt_tokens), time.monotonic())
    return core


def _engine(num_requests: int) -> Engine:
    scheduler = SchedulerConfig(
        max_num_seqs=num_requests, max_num_batched_tokens=2048, max_waiting_requests=0, max_waiting_tokens=0
    )
    config = EngineConfig(scheduler=scheduler)
    limits = RequestLimits(
        max_model_len=MAX_MODEL_LEN,
        vocab_size=VOCAB_SIZE,
        max_logprobs=20,
        has_priorities=False,
        max_num_seqs=num_requests,
    )
    num_blocks = num_requests * MAX_MODEL_LEN // config.cache.block_size // 2
    step_limits = config.scheduler.step_limits("cpu")
    return Engine(config, num_blocks=num_blocks, step_limits=step_limits, limits=limits, executor_epoch=1)


def _request(request_id: int, num_prompt_tokens: int) -> AddRequest:
    prompt = [(request_id * 31 + index) % VOCAB_SIZE for index in range(num_prompt_tokens)]
    task = GenerateTask(sampling=Sampling(seed=request_id), max_tokens=MAX_MODEL_LEN // 2, eos_token_ids=[2])
    return AddRequest(request_id=request_id, inputs=TokenInputs(prompt_token_ids=prompt), task=task)


if __name__ == "__main__":
    sys.exit(main())
