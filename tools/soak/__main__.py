"""Check that nothing is left of many requests: `python -m tools.soak [--requests 20000] [--warm-up 2000] [--seed N]`.

A server of a tiny checkpoint gets short requests over HTTP, some of them broken off, malformed or from clients that
vanish, and over ZeroMQ from a client that aborts some and counts every message. After the warm-up and at the end the
memory of each process is read: it may grow by 5 %. At the end no block may be in use, and every accepted request must
have had exactly one terminal message. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from tools.processes import processes_below, resident_bytes
from tools.tiny_model.hugging_face import write_hugging_face
from tools.tiny_model.spec import TinyModelSpec
from tools.watched_server import WatchedServer

from .http_load import HTTPLoad, malformed_bodies
from .wire_load import WireLoad

_MAX_GROWTH = 0.05
_NUM_HTTP_CLIENTS = 16
_SHARE_OF_WIRE = 0.25  # of the requests
# The system gives the memory of a KV block when it is first written. All of a small pool is in use after the warm-up,
# which must not be taken for growth, nor hide one.
_NUM_BLOCKS = 512
_SHOWN_PROBLEMS = 10
_IDLE_WITHIN_S = 20.0
_FINISHED = re.compile(r"^vllm:request_success_total\{.*\} (\S+)$", re.MULTILINE)
_HELD = re.compile(
    r"^vllm:(?:num_requests_running|num_requests_waiting|kv_cache_usage_perc)\{.*\} (\S+)$", re.MULTILINE
)


def main() -> int:
    """Run it and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--warm-up", type=int, default=2_000, help="requests before memory is read for the first time")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not 0 < args.warm_up < args.requests:
        parser.error(f"--warm-up {args.warm_up} must be at least 1 and less than --requests {args.requests}.")
    with tempfile.TemporaryDirectory(prefix="pw-soak-") as directory:
        write_hugging_face(TinyModelSpec(), Path(directory))
        with WatchedServer(directory, "--num-gpu-blocks-override", str(_NUM_BLOCKS)) as server:
            is_right = asyncio.run(_run(server, args.requests, args.warm_up, args.seed))
            exit_code = server.stop()
            left = [*server.strays(), *server.files_left()]
            print(f"exit code of the server {exit_code}; processes and files left: {len(left)}")
            is_right = is_right and exit_code == 0 and not left
    print("nothing is left of the requests" if is_right else "FAILED")
    return 0 if is_right else 1


async def _run(server: WatchedServer, num_requests: int, num_warm_up: int, seed: int) -> bool:
    (address,) = (f"ipc://{path}" for path in server.runtime_parent.glob("*/core.sock"))
    wire = await WireLoad.connect(address, random.Random(seed))
    malformed = malformed_bodies(wire.info.vocab_size, wire.info.max_model_len)
    http = HTTPLoad(server.url, malformed, random.Random(seed + 1))
    started = time.monotonic()
    try:
        await _load(http, wire, num_warm_up)
        before = await _memory_when_idle(server)
        await _load(http, wire, num_requests - num_warm_up)
        after = await _memory_when_idle(server)
    except RuntimeError as exc:
        print(f"{exc}\n{server.log_tail()}")
        return False
    finally:
        wire.close()
    seconds = time.monotonic() - started
    print(f"{num_requests} requests in {seconds:.0f} s, {num_requests / seconds:.0f} a second")
    print("over HTTP: " + ", ".join(f"{count} {kind}" for kind, count in sorted(http.counts.items())))
    is_right = _report_memory(before, after)
    num_finished = sum(float(count) for count in _FINISHED.findall(await _metrics(server.url)))
    most = http.num_accepted + http.num_unknown
    print(f"over HTTP: {http.num_accepted} to {most} answers accepted, {num_finished:.0f} finished by /metrics")
    print(
        f"over ZeroMQ: {wire.num_accepted} requests accepted and {wire.num_refused} refused, "
        f"{wire.num_ends} terminal messages"
    )
    problems = http.problems + wire.problems
    print(f"problems: {len(problems)}")
    for problem in problems[:_SHOWN_PROBLEMS]:
        print(f"  {problem}")
    is_right = is_right and http.num_accepted <= num_finished <= most
    return is_right and wire.num_ends == wire.num_accepted + wire.num_refused and not problems


async def _load(http: HTTPLoad, wire: WireLoad, number: int) -> None:
    num_wire = int(number * _SHARE_OF_WIRE)
    await asyncio.gather(http.run(number - num_wire, _NUM_HTTP_CLIENTS), wire.run(num_wire))


async def _memory_when_idle(server: WatchedServer) -> dict[tuple[str, int], int]:
    """Wait until no request and no block is held; return the resident bytes of each process by its module and pid.

    Raises:
        RuntimeError: something is held that nobody asks for any more.
    """
    deadline = time.monotonic() + _IDLE_WITHIN_S
    while any(float(value) for value in _HELD.findall(await _metrics(server.url))):
        if time.monotonic() > deadline:
            raise RuntimeError(f"requests or blocks are held {_IDLE_WITHIN_S} s after the last request")
        await asyncio.sleep(0.1)
    memory = {("pagewire", server.pid): resident_bytes(server.pid)}
    for process in processes_below(server.pid):
        memory[process.module or "another", process.pid] = resident_bytes(process.pid)
    return memory


def _report_memory(before: dict[tuple[str, int], int], after: dict[tuple[str, int], int]) -> bool:
    """Print the memory of each process; return whether they are the same ones and none grew too much."""
    for key, num_bytes in after.items():
        growth = num_bytes / before[key] - 1 if key in before else float("nan")
        before_mib = before.get(key, 0) / 2**20
        print(f"  {key[0]:<36} {before_mib:7.1f} MiB -> {num_bytes / 2**20:7.1f} MiB  {growth:+.1%}")
    if before.keys() != after.keys():
        print("not the same processes: one was started again")
        return False
    return all(after[key] <= (1 + _MAX_GROWTH) * before[key] for key in before)


async def _metrics(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        return await response.text()


if __name__ == "__main__":
    sys.exit(main())
