"""Measure the frontend's share of a token: `python -m tools.measure_frontend [MODEL] [--streams 1 16 64]`.

A real `pagewire serve --engine` is attached to a core of one loop that gives every stream a token a step, at the pace
of a small machine; a third process reads the streams. Prints the processor time that the frontend takes for
a token, and how long a token takes from the core to the client. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp

from pagewire.checkpoint.resolve import resolve_model
from tools.paced_core import NUM_WARM_UP_STEPS, Measured, Order, attached_frontend, paced_core

STEP_S = {1: 0.006, 16: 0.025, 64: 0.09}  # how fast a small CPU decodes so many streams


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="SmolLM2-135M-Instruct")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tokens", type=int, default=3000, help="measured at each number of streams")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-ms", type=float, help="pace of the core; default: that of a small CPU")
    args = parser.parse_args()
    model_path = Path(resolve_model(args.model).path)
    with tempfile.TemporaryDirectory() as directory:
        address = f"ipc://{directory}/core.sock"
        with paced_core(address, model_path) as orders, attached_frontend(address) as (url, pid):
            for num_streams in args.streams:
                step_s = STEP_S.get(num_streams, 0.002 * num_streams) if args.step_ms is None else args.step_ms / 1000
                rounds = [measure(url, pid, orders, num_streams, args.tokens, step_s) for _ in range(args.rounds)]
                costs = [cost_us for cost_us, _ in rounds]
                delays = [delay_ms for _, delays in rounds for delay_ms in delays]
                print(
                    f"{num_streams:4} streams: {statistics.median(costs):6.1f} us of processor time a token "
                    f"(best {min(costs):.1f}); core to client {statistics.median(delays):.2f} ms, "
                    f"p99 {sorted(delays)[int(0.99 * len(delays))]:.2f} ms",
                    flush=True,
                )
    return 0


def measure(
    url: str, pid: int, orders: Connection, num_streams: int, num_tokens: int, step_s: float
) -> tuple[float, list[float]]:
    """Return (microseconds a token, milliseconds that each token took from the core to the client)."""
    num_steps = max(num_tokens // num_streams, 20)
    orders.send(Order(pid, num_streams, num_steps, step_s))
    parent, child = multiprocessing.Pipe()
    process = multiprocessing.Process(target=read_streams, args=(url, num_streams, child))
    process.start()
    measured: Measured = orders.recv()
    events: dict[str, list[tuple[float, int]]] = parent.recv()
    process.join()
    delays_ms = [
        1000 * (came - sent)
        for label, tokens in measured.sent.items()
        for sent, came in arrivals(tokens, events[label])[NUM_WARM_UP_STEPS:]
    ]
    return measured.cpu_s / measured.num_tokens * 1e6, delays_ms


def arrivals(tokens: list[tuple[float, int]], events: list[tuple[float, int]]) -> list[tuple[float, float]]:
    """Return (sent, arrived) of each token; several may have come in one event.

    Args:
        tokens: (when it was sent, characters of the text up to it).
        events: (when it came, characters of the text up to it).
    """
    matched = []
    remaining = iter(events)
    came_s, num_characters = next(remaining)
    for sent_s, end in tokens:
        while num_characters < end:
            came_s, num_characters = next(remaining)
        matched.append((sent_s, came_s))
    return matched


def read_streams(url: str, num_streams: int, result: Connection) -> None:
    """The client's process: read all streams, send when each event came."""
    result.send(asyncio.run(_read_all(url, num_streams)))


async def _read_all(url: str, num_streams: int) -> dict[str, list[tuple[float, int]]]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
        streams = await asyncio.gather(*(_read_one(session, url, f"s{index}") for index in range(num_streams)))
    return {f"cmpl-s{index}": events for index, events in enumerate(streams)}


async def _read_one(session: aiohttp.ClientSession, url: str, name: str) -> list[tuple[float, int]]:
    body = {"prompt": "Once upon a time", "max_tokens": 7000, "stream": True, "ignore_eos": True, "temperature": 0}
    events = []
    num_characters = 0
    async with session.post(f"{url}/v1/completions", json=body, headers={"X-Request-Id": name}) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {"):
                num_characters += len(json.loads(line[6:])["choices"][0]["text"])
                events.append((time.perf_counter(), num_characters))
    return events


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(main())
