"""Measure the start and the rest of a server: `python -m tools.measure_start [MODEL] [--idle-seconds 20]`.

Prints what `import pagewire` takes, how long `pagewire serve` needs until /health answers, the resident memory of each
process, and the share of a core that the idle server uses. With `--fill-tokens 32768`, also the executor's memory after
the keys and values of so many tokens were written. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tools.processes import processes_below
from tools.serving import serving

_PROMPT_TOKENS = 1024


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="SmolLM2-135M-Instruct")
    parser.add_argument("--idle-seconds", type=float, default=20.0)
    parser.add_argument("--fill-tokens", type=int, default=0)
    args = parser.parse_args()
    print(f"import pagewire                {import_ms():8.1f} ms  (best of 5)")
    started = time.perf_counter()
    with serving(args.model) as server:
        print(f"ready after                    {time.perf_counter() - started:8.2f} s")
        below = {process.module: process.pid for process in processes_below(server.pid)}
        executor = below["pagewire.gpu_executor"]
        processes = {
            "frontend": server.pid,
            "chat template": below["pagewire.frontend.templates"],
            "engine core": below["pagewire.engine_core"],
            "executor": executor,
        }
        for name, pid in processes.items():
            maps = Path(f"/proc/{pid}/maps").read_text()
            torch = "torch loaded" if "libtorch" in maps else "no torch"
            print(f"resident memory, {name:<13} {resident_mib(pid):9.1f} MiB  ({torch})")
        before = {name: cpu_s(pid) for name, pid in processes.items()}
        time.sleep(args.idle_seconds)
        for name, pid in processes.items():
            used = (cpu_s(pid) - before[name]) / args.idle_seconds
            print(f"idle, {name:<13}            {100 * used:9.2f} % of a core")
        if args.fill_tokens:
            fill_kv_cache(server.url, args.model, args.fill_tokens)
            print(f"executor, {args.fill_tokens} tokens of KV later {resident_mib(executor):9.1f} MiB")
    return 0


def import_ms() -> float:
    """The best of five imports in fresh interpreters, in milliseconds, without the interpreter's own start."""
    code = "import time; t = time.perf_counter(); import pagewire; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    return min(float(run.stdout) for run in runs) * 1000


def fill_kv_cache(url: str, model: str, num_tokens: int) -> None:
    """Send prompts of so many tokens in total, no two alike: their blocks stay in the prefix cache."""
    generator = random.Random(0)
    for _ in range(num_tokens // _PROMPT_TOKENS):
        prompt = [generator.randrange(1000, 40_000) for _ in range(_PROMPT_TOKENS)]
        body = json.dumps({"model": model, "prompt": prompt, "max_tokens": 1}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            answer.read()


def resident_mib(pid: int) -> float:
    """Resident memory of a process in MiB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found.group(1)) / 1024


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
