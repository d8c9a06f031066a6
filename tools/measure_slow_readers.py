"""Measure what slow readers cost the others: `python -m tools.measure_slow_readers [MODEL] [--readers 50]`.

A real `pagewire serve --engine` is attached to a core that gives every stream a token a step at a fixed pace. One
client reads its stream as fast as it comes: alone, beside streams whose clients take ten bytes a second, and beside as
many that read as fast as it does. Prints the times between its tokens, how long these took from the core, and how much
the server's memory grew. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import socket
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from pagewire.checkpoint.resolve import resolve_model
from tools.measure_frontend import arrivals, read_streams
from tools.paced_core import Measured, Order, attached_frontend, paced_core
from tools.processes import resident_bytes

BYTES_A_TURN = 10
TURN_S = 1.0
RECEIVE_BUFFER_BYTES = 4096  # what the kernel takes in for a client that does not read
FAST = "cmpl-s0"


@dataclass(frozen=True)
class Run:
    """What one run showed, of the second half of its steps: by then slow readers' buffers are full.

    Attributes:
        between_ms: times between the fast client's tokens.
        delays_ms: of each of its tokens, from the core to it.
        cpu_us: the server's processor time a token of all streams, over the whole run.
        grown_mib: what the server's memory grew by.
        num_bytes_taken: by each slow reader, of the 200 to 300 that a token's event has; 0 without any.
    """

    between_ms: list[float]
    delays_ms: list[float]
    cpu_us: float
    grown_mib: float
    num_bytes_taken: float


@dataclass(frozen=True)
class Setting:
    """Where a run is made: the server's address and process, and where the core takes its orders."""

    url: str
    pid: int
    orders: Connection
    num_steps: int
    step_s: float


def main() -> int:
    """Print the figures, a line for each company that the fast client has."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="SmolLM2-135M-Instruct")
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--steps", type=int, default=2000, help="of a run; its second half is measured")
    parser.add_argument("--step-ms", type=float, default=10.0, help="pace of the core")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    model_path = Path(resolve_model(args.model).path)
    companies = {"alone": (0, 0), f"{args.readers} slow": (args.readers, 0), f"{args.readers} fast": (0, args.readers)}
    runs: dict[str, list[Run]] = {name: [] for name in companies}
    with tempfile.TemporaryDirectory() as directory:
        address = f"ipc://{directory}/core.sock"
        with paced_core(address, model_path) as orders, attached_frontend(address) as (url, pid):
            setting = Setting(url, pid, orders, args.steps, args.step_ms / 1000)
            for _ in range(args.rounds):  # in turn, so that what else the machine does falls on all
                for name, (num_slow, num_fast) in companies.items():
                    runs[name].append(measure(setting, num_slow, num_fast))
    for name, of_company in runs.items():
        print(row(name, of_company))
    taken = statistics.mean(run.num_bytes_taken for run in runs[f"{args.readers} slow"])
    print(f"Each slow reader took {taken:.0f} bytes of its {args.steps} events.")
    return 0


def measure(setting: Setting, num_slow: int, num_fast: int) -> Run:
    """Run the fast client's stream beside slow and other fast ones."""
    before = resident_bytes(setting.pid)
    setting.orders.send(Order(setting.pid, 1 + num_slow + num_fast, setting.num_steps, setting.step_s))
    with slow_readers(setting.url, num_slow) as num_taken:
        parent, child = multiprocessing.Pipe()
        fast = multiprocessing.Process(target=read_streams, args=(setting.url, 1 + num_fast, child))
        fast.start()
        measured: Measured = setting.orders.recv()
        events: dict[str, list[tuple[float, int]]] = parent.recv()
        fast.join()
        grown_mib = (resident_bytes(setting.pid) - before) / 2**20
        num_bytes = num_taken()
    tokens = arrivals(measured.sent[FAST], events[FAST])
    tokens = tokens[len(tokens) // 2 :]
    came = [came_s for _, came_s in tokens]
    return Run(
        between_ms=[1000 * (later - earlier) for earlier, later in pairwise(came)],
        delays_ms=[1000 * (came_s - sent_s) for sent_s, came_s in tokens],
        cpu_us=measured.cpu_s / measured.num_tokens * 1e6,
        grown_mib=grown_mib,
        num_bytes_taken=num_bytes / num_slow if num_slow else 0.0,
    )


def row(name: str, runs: Sequence[Run]) -> str:
    """Return one line of the table: what the fast client saw in all rounds, and p50 of the best and the worst one."""
    between = sorted(ms for run in runs for ms in run.between_ms)
    delays = sorted(ms for run in runs for ms in run.delays_ms)
    rounds = [statistics.median(run.between_ms) for run in runs]
    tokens = f"{statistics.median(between):.2f} ms between tokens (rounds {min(rounds):.2f} to {max(rounds):.2f})"
    rare = f"p99 {share_of(between, 0.99):.2f}, longest {between[-1]:.1f}"
    delay = f"core to client {statistics.median(delays):.2f} ms, p99 {share_of(delays, 0.99):.2f}"
    cpu = f"{statistics.median(run.cpu_us for run in runs):.0f} us of processor time a token"
    return f"{name:>8}: {tokens}, {rare}; {delay}; {cpu}; memory {max(run.grown_mib for run in runs):+.1f} MiB"


def share_of(ascending: Sequence[float], share: float) -> float:
    """Return the value that a share of all values do not exceed."""
    return ascending[min(int(share * len(ascending)), len(ascending) - 1)]


@contextlib.contextmanager
def slow_readers(url: str, num_readers: int) -> Iterator[Callable[[], int]]:
    """Let a process open streams that it hardly reads; yield what says how many bytes it has taken in all."""
    parent, child = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_read_slowly, args=(url, num_readers, child))
    process.start()
    child.close()
    try:

        def num_taken() -> int:
            parent.send(None)
            taken: int = parent.recv()
            return taken

        yield num_taken
    finally:
        parent.close()
        process.join()


def _read_slowly(url: str, num_readers: int, orders: Connection) -> None:
    """The slow clients' process: ends, with all its connections, when the other end hangs up."""
    connections = [_open_stream(url) for _ in range(num_readers)]
    num_taken = 0
    with contextlib.suppress(EOFError):
        while True:
            if orders.poll(TURN_S):
                orders.recv()
                orders.send(num_taken)
            for connection in connections:
                with contextlib.suppress(BlockingIOError):
                    num_taken += len(connection.recv(BYTES_A_TURN))
    for connection in connections:
        connection.close()


def _open_stream(url: str) -> socket.socket:
    server = urlsplit(url)
    assert server.hostname is not None
    assert server.port is not None
    body = {"prompt": "Once upon a time", "max_tokens": 7000, "stream": True, "ignore_eos": True, "temperature": 0}
    payload = json.dumps(body).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    connection.connect((server.hostname, server.port))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {server.hostname}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
    connection.setblocking(False)
    return connection


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(main())
