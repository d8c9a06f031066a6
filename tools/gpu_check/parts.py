"""The parts of the check, each in processes of its own: a kernel that ends its process costs that share of it alone."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tools.gpu_check.records import AnyRecord, PartEnd, PartOutcome, RecordWriter, read_records
from tools.gpu_check.setting import Setting, Share

_LEAST_S = 8.0  # a part that has less left is not begun
_KEPT_CHARACTERS = 300
_WORST_FIRST: tuple[PartOutcome, ...] = ("failed", "out of time", "skipped", "done")

SKIPPED = 3
"""Exit code of a part's process that can't do anything here, and that this is no fault."""


class SkipPart(Exception):
    """A part lacks something that a machine need not have; the text says what."""


class Part(NamedTuple):
    """One part.

    Attributes:
        name: as in the report.
        entry: "module:function", which takes the setting and yields records.
        limit_s: seconds that it may take of the whole budget.
        processes: that share it: as many of its kernels are compiled at a time.
    """

    name: str
    entry: str
    limit_s: float
    processes: int = 1


PARTS = (
    Part("ceilings", "ceilings:run", 20.0),
    Part("correctness", "correctness:run", 45.0, processes=8),
    Part("rates of ops", "op_rates:run", 40.0),
    Part("engine, offline", "offline:run", 70.0),
    Part("transformers", "hugging_face:run", 45.0),
    Part("engine, served", "served:run", 60.0),
    Part("correctness, float16", "correctness:run_second_dtype", 45.0, processes=8),
)
"""In the order of what is wanted most: the last two get what time is left, which the others' limits do not promise."""

BUDGET_S = 225.0
"""For all parts."""


def run_part(part: Part, setting: Setting, path: Path) -> None:
    """Run a part in this process; its records go to the file as they come."""
    writer = RecordWriter(path)
    module, _, function = part.entry.partition(":")
    run: Callable[[Setting], Iterable[AnyRecord]]
    run = getattr(importlib.import_module(f"tools.gpu_check.{module}"), function)
    for record in run(setting):
        writer.add(record)


def run_all(
    parts: Iterable[Part],
    command: Callable[[Part, Share], list[str]],
    path: Path,
    budget_s: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> list[AnyRecord]:
    """Run parts one after the other, each in processes of its own, until the budget is spent.

    Args:
        parts: in this order.
        command: returns the command line that runs a share of a part and appends to the file.
        path: the file of records.
        budget_s: seconds for all of them.
        say: prints a line.
        clock: seconds, monotonic.

    Returns:
        All records, with one `PartEnd` for each part.
    """
    end = clock() + budget_s
    for part in parts:
        limit_s = min(part.limit_s, end - clock())
        if limit_s < min(_LEAST_S, part.limit_s):
            ended = PartEnd(part=part.name, outcome="skipped", seconds=0.0, reason="the time for all parts is spent")
        else:
            say(f"{part.name}: at most {limit_s:.0f} s ...")
            started = clock()
            commands = [command(part, Share(index, part.processes)) for index in range(part.processes)]
            outcome, reason = _run_processes(commands, limit_s, clock)
            ended = PartEnd(part=part.name, outcome=outcome, seconds=clock() - started, reason=reason)
        say(f"{part.name}: {ended.outcome} after {ended.seconds:.1f} s{': ' * bool(ended.reason)}{ended.reason}")
        RecordWriter(path).add(ended)
    return read_records(path)


def _run_processes(
    commands: Sequence[list[str]], limit_s: float, clock: Callable[[], float]
) -> tuple[PartOutcome, str]:
    """Run all at once; return how they ended, the worst first, and why that one did not do all."""
    end = clock() + limit_s
    environment = dict(os.environ)
    if len(commands) > 1:
        environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // len(commands)))
    processes = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
        for command in commands
    ]
    ends = [_end_of(process, limit_s, end - clock()) for process in processes]
    return min(ends, key=lambda one: _WORST_FIRST.index(one[0]))


def _end_of(process: subprocess.Popen[str], limit_s: float, left_s: float) -> tuple[PartOutcome, str]:
    try:
        _, errors = process.communicate(timeout=max(0.0, left_s))
    except subprocess.TimeoutExpired:
        # One of several may have ended while others were waited for.
        if process.poll() is None:
            process.kill()  # an engine that it started ends with it
            process.communicate()
            return "out of time", f"more than {limit_s:.0f} s"
        _, errors = process.communicate()
    if process.returncode == 0:
        return "done", ""
    lines = errors.strip().splitlines() or [f"exit code {process.returncode}"]
    if process.returncode == SKIPPED:
        return "skipped", lines[-1]
    sys.stderr.write(errors)
    return "failed", lines[-1][:_KEPT_CHARACTERS]
