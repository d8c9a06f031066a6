"""Prove that no stream is lost: `python -m tools.chaos [--minutes 5] [--every 3-8] [--stall-limit 3] [--seed N]`.

A server of the packaged model answers sixteen streaming clients, half of whose requests are greedy and half seeded at
temperature 1. First every request is asked once, undisturbed. Then its engine core and executor are killed (SIGKILL) or
stopped (SIGSTOP) at random, some while a long prompt is computed and some while another restart is under way, and
every stream must bring the same tokens to its end. Exit code 1: a stream was lost, an answer differs, a process
outlived its parent, or a file was left.

`--kills N` ends after so many strikes, however long that takes; `--after-recovery --every 0.6-1.2` makes them follow
soon after the server is back from the last one, `--during-restarts 0.5` half of them before it is.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time

import aiohttp

from tools.watched_server import WatchedServer

from .report import print_report, read_restarts
from .streams import Clients, make_requests
from .strikes import HealthWatch, NeverBack, Striker

_PROGRESS_S = 30.0


def main() -> int:
    """Run it and return the exit code."""
    args = _parser().parse_args()
    # Steps of a fraction of a second: strikes amid a prompt then find some of it done, and seldom the very first step.
    flags = ["--max-model-len", "1024", "--max-num-batched-tokens", "128"]
    flags += ["--stall-limit", str(args.stall_limit), *args.serve]
    with WatchedServer(args.model, *flags) as server:
        print(f"serving at {server.url}, log in {server.log_path}, seed {args.seed}", flush=True)
        is_right = asyncio.run(_run(server, args))
        try:
            exit_code = server.stop()
        except RuntimeError as exc:
            print(exc)
            exit_code = -1
        orphans = server.strays()
        files = server.files_left()
        print(f"exit code of the server: {exit_code}; processes left: {len(orphans)}; files left: {len(files)}")
        is_right = is_right and exit_code == 0 and not orphans and not files
        print("no stream is lost" if is_right else f"FAILED; the end of the log:\n{server.log_tail()}")
        return 0 if is_right else 1


async def _run(server: WatchedServer, args: argparse.Namespace) -> bool:
    """Record, disturb, report; return whether all went well up to the server's end."""
    clients = Clients(server.url, make_requests(args.requests, args.seed), silence_limit_s=args.silence_limit)
    started = time.monotonic()
    undisturbed_problem = await clients.record(args.streams)
    if undisturbed_problem is not None:
        print(f"not even an undisturbed stream is whole: {undisturbed_problem}")
        return False
    print(f"recorded {args.requests} answers in {time.monotonic() - started:.1f} s", flush=True)
    health = HealthWatch(server.url)
    striker = Striker(
        server,
        clients,
        health,
        random.Random(args.seed),
        every_s=args.every,
        share_of_stops=args.stops,
        share_during_restarts=args.during_restarts,
        waits_for_recovery=args.after_recovery,
    )
    started = time.monotonic()

    def is_over() -> bool:
        if args.kills is not None:
            return bool(len(striker.strikes) >= args.kills)
        return bool(time.monotonic() - started >= args.minutes * 60)

    watching = [asyncio.create_task(health.run()), asyncio.create_task(_print_progress(clients, striker))]
    asking = asyncio.create_task(clients.run(args.streams))
    problem = None
    try:
        await striker.run(is_over)
    except NeverBack as exc:
        problem = str(exc)
    finally:
        clients.close()
        await asking
    # The last requests' blocks are free a moment after their streams' ends.
    problem = problem or await _find_leftovers(server.url)
    for task in watching:
        task.cancel()
    restarts = read_restarts(await _get_metrics(server.url)) if server.exit_code is None else {}
    print_report(clients, striker, health, restarts, time.monotonic() - started)
    print(f"orphans: {len(striker.orphans)}")
    if problem is not None:
        print(f"problem: {problem}")
    return not (problem or clients.lost or clients.differing or striker.orphans or health.num_failed_live)


async def _find_leftovers(url: str, timeout_s: float = 10.0) -> str | None:
    """Return what the engine still holds when nobody asks for anything, None if it is nothing."""
    deadline = time.monotonic() + timeout_s
    while True:
        metrics = await _get_metrics(url)
        held = [
            line
            for line in metrics.splitlines()
            if line.startswith(
                ("vllm:num_requests_running{", "vllm:num_requests_waiting{", "vllm:kv_cache_usage_perc{")
            )
            and float(line.rpartition(" ")[2])
        ]
        if not held:
            return None
        if time.monotonic() > deadline:
            return f"the idle engine still holds {held}"
        await asyncio.sleep(0.1)


async def _get_metrics(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        return await response.text()


async def _print_progress(clients: Clients, striker: Striker) -> None:
    started = time.monotonic()
    while True:
        await asyncio.sleep(_PROGRESS_S)
        print(
            f"{time.monotonic() - started:6.0f} s: {len(striker.strikes)} strikes, "
            f"{sum(clients.num_answers.values())} answers, {len(clients.lost)} lost, "
            f"{len(clients.differing)} differing",
            flush=True,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long to strike")
    parser.add_argument("--kills", type=int, help="end after so many strikes instead")
    parser.add_argument("--every", type=_range, default=(3.0, 8.0), metavar="A-B", help="seconds between two strikes")
    parser.add_argument("--after-recovery", action="store_true", help="count them from when the server is back")
    parser.add_argument("--stops", type=float, default=0.5, help="share of strikes that stop a process, not kill it")
    parser.add_argument(
        "--during-restarts", type=float, default=0.2, help="share of strikes that are followed by one while it recovers"
    )
    parser.add_argument("--stall-limit", type=float, default=3.0, help="the server's")
    parser.add_argument(
        "--silence-limit", type=float, default=120.0, help="seconds without token and strike: a lost stream"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the requests and of the order of strikes")
    parser.add_argument("--streams", type=int, default=16, help="clients that stream at once")
    parser.add_argument("--requests", type=int, default=64, help="distinct requests")
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="further flags of pagewire serve")
    return parser


def _range(text: str) -> tuple[float, float]:
    low, _, high = text.partition("-")
    try:
        return float(low), float(high or low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of seconds, such as 3-8") from None


if __name__ == "__main__":
    sys.exit(main())
