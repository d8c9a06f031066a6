"""A core that computes nothing and gives every stream a token a step at a fixed pace, and a frontend attached to it.

For tools that measure the frontend alone. Linux only: processor time is read out of /proc.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import zmq

from pagewire.checkpoint.loading import load_model_config
from pagewire.frontend.tokenizer.tokenizer import load_tokenizer
from pagewire.ipc.channels import ClientId, ClientRouter
from pagewire.ipc.codec import PROTOCOL_VERSION
from pagewire.ipc.outputs import (
    EngineInfo,
    FinishReason,
    Ready,
    RequestEnd,
    RequestStart,
    StepOutputs,
    StepStats,
    TokenDelta,
)
from pagewire.ipc.requests import AddRequest, Hello, Ping
from tools.prompts import PROMPTS
from tools.serving import is_healthy

NUM_WARM_UP_STEPS = 30


@dataclass(frozen=True)
class Order:
    """What the core is to measure: `num_steps` steps of the process `pid`, once so many streams run."""

    pid: int
    num_streams: int
    num_steps: int
    step_s: float


@dataclass(frozen=True)
class Measured:
    """What came of an order.

    Attributes:
        cpu_s: processor seconds of the frontend.
        num_tokens: tokens sent meanwhile.
        sent: by label, (when it was sent, characters of the text up to it) of each token.
    """

    cpu_s: float
    num_tokens: int
    sent: dict[str, list[tuple[float, int]]]


@dataclass
class Stream:
    """A request in the core's eyes."""

    client: ClientId
    request: AddRequest
    sent: list[tuple[float, int]] = field(default_factory=list)


class PacedCore:
    """Speaks the core's side of the protocol, and draws tokens at a fixed pace.

    Args:
        tokens: (token id, characters), drawn over and over.
        orders: what to measure.
    """

    def __init__(self, address: str, info: EngineInfo, tokens: list[tuple[int, int]], orders: Connection) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = ClientRouter(self._context, address)
        self._info = info
        self._tokens = tokens
        self._orders = orders
        self._streams: dict[int, Stream] = {}
        self._num_steps = 0

    def serve(self) -> None:
        """Carry out one order after the other, until the other end hangs up."""
        with contextlib.suppress(EOFError):
            while True:
                while not self._orders.poll():
                    self._receive(0.05)
                self._carry_out(self._orders.recv())
        self._router.close()
        self._context.destroy(linger=0)

    def _carry_out(self, order: Order) -> None:
        while len(self._streams) < order.num_streams:
            self._receive(0.05)
        sent = {stream.request.label: stream.sent for stream in self._streams.values()}
        cpu_s = 0.0
        next_s = time.perf_counter()
        for index in range(NUM_WARM_UP_STEPS + order.num_steps):
            if index == NUM_WARM_UP_STEPS:
                cpu_s = cpu_seconds(order.pid)
            next_s += order.step_s
            while (left_s := next_s - time.perf_counter()) > 0:
                self._receive(left_s)
            self._step()
        time.sleep(0.2)  # the last step's tokens are on their way
        measured = Measured(cpu_seconds(order.pid) - cpu_s, order.num_steps * order.num_streams, sent)
        self._end_streams()
        self._orders.send(measured)

    def _receive(self, timeout_s: float) -> None:
        if not self._router.socket.poll(int(timeout_s * 1000) + 1):
            return
        while (received := self._router.try_recv()) is not None:
            client, message = received
            if isinstance(message, Hello):
                self._router.send(client, Ready(protocol_version=PROTOCOL_VERSION, core_epoch=1, info=self._info))
            elif isinstance(message, Ping):
                self._router.send(client, Ping())
            elif isinstance(message, AddRequest):
                self._streams[message.request_id] = Stream(client, message)
                self._router.send(client, StepOutputs(accepted=[message.request_id]))

    def _step(self, reason: FinishReason | None = None) -> None:
        self._num_steps += 1
        starts = [RequestStart(request_id=key) for key, stream in self._streams.items() if not stream.sent]
        deltas = []
        now = time.perf_counter()
        for request_id, stream in self._streams.items():
            index = len(stream.sent)
            token_id, num_characters = self._tokens[index % len(self._tokens)]
            deltas.append(
                TokenDelta(request_id=request_id, first_index=index, token_ids=[token_id], finish_reason=reason)
            )
            stream.sent.append((now, num_characters + (stream.sent[-1][1] if index else 0)))
        ends = [RequestEnd(request_id=request_id) for request_id in self._streams] if reason is not None else []
        stats = StepStats(num_steps=self._num_steps, num_running=len(deltas), num_scheduled_tokens=len(deltas))
        client = next(iter(self._streams.values())).client
        self._router.send(client, StepOutputs(starts=starts, deltas=deltas, ends=ends, stats=stats))

    def _end_streams(self) -> None:
        self._step(FinishReason.LENGTH)
        self._streams.clear()


@contextlib.contextmanager
def paced_core(address: str, model_path: Path) -> Iterator[Connection]:
    """Run a `PacedCore` in a process of its own; yield where its orders go."""
    parent, child = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_run_core, args=(address, model_path, child))
    process.start()
    child.close()
    try:
        yield parent
    finally:
        parent.close()
        process.terminate()
        process.join()


def _run_core(address: str, model_path: Path, orders: Connection) -> None:
    config = load_model_config(model_path)
    info = EngineInfo(
        model="paced",
        model_path=str(model_path),
        served_model_names=("paced",),
        max_model_len=config.max_position,
        vocab_size=config.tokenizer_size,
        eos_token_ids=config.eos_token_ids,
        bos_token_id=config.bos_token_id,
        max_logprobs=20,
        block_size=16,
        num_blocks=4096,
        device="cpu",
        dtype="float32",
        kv_cache_dtype="float16",
        scheduling_policy="fcfs",
        max_num_seqs=128,
        max_num_batched_tokens=512,
        enable_prefix_caching=True,
    )
    tokenizer = load_tokenizer(model_path)
    token_ids = tokenizer.encode(PROMPTS[-1], add_special_tokens=False)
    tokens = [(token_id, len(tokenizer.decode([token_id]))) for token_id in token_ids]
    PacedCore(address, info, tokens, orders).serve()


@contextlib.contextmanager
def attached_frontend(address: str) -> Iterator[tuple[str, int]]:
    """Run `pagewire serve --engine ADDRESS`; yield its URL and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "pagewire", "serve", "--engine", address]
    process = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"])
    url = f"http://127.0.0.1:{port}"
    try:
        while not is_healthy(url):
            if process.poll() is not None:
                raise RuntimeError(f"the frontend ended with exit code {process.returncode}")
            time.sleep(0.02)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


def cpu_seconds(pid: int) -> float:
    """Seconds of processor time that all threads of a process have used, to the nanosecond."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
