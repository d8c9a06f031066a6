"""The parts of the check, each run in a process of its own: a kernel that ends its process costs its part alone."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from tools.gpu_check.records import AnyRecord, PartEnd, RecordWriter, read_records
from tools.gpu_check.setting import Setting

_LEAST_S = 8.0  # a part that has less left is not begun
_KEPT_CHARACTERS = 300

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
    """

    name: str
    entry: str
    limit_s: float


PARTS = (
    Part("ceilings", "ceilings:run", 20.0),
    Part("correctness", "correctness:run", 60.0),
    Part("rates of ops", "op_rates:run", 45.0),
    Part("engine, offline", "offline:run", 75.0),
    Part("engine, served", "served:run", 60.0),
    Part("transformers", "hugging_face:run", 45.0),
    Part("correctness, float16", "correctness:run_second_dtype", 60.0),
)
"""In the order of what is wanted most: the last ones get what time is left."""


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
    command: Callable[[Part], list[str]],
    path: Path,
    budget_s: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> list[AnyRecord]:
    """Run parts one after the other, each in a process, until the budget is spent.

    Args:
        parts: in this order.
        command: returns the command line that runs one part and appends to the file.
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
            ended = _run_process(part, command(part), limit_s, clock)
        say(f"{part.name}: {ended.outcome} after {ended.seconds:.1f} s{': ' * bool(ended.reason)}{ended.reason}")
        RecordWriter(path).add(ended)
    return read_records(path)


def _run_process(part: Part, command: list[str], limit_s: float, clock: Callable[[], float]) -> PartEnd:
    started = clock()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()  # an engine that it started ends with it
        process.communicate()
        return PartEnd(
            part=part.name, outcome="out of time", seconds=clock() - started, reason=f"more than {limit_s:.0f} s"
        )
    if process.returncode == 0:
        return PartEnd(part=part.name, outcome="done", seconds=clock() - started)
    lines = errors.strip().splitlines() or [f"exit code {process.returncode}"]
    if process.returncode == SKIPPED:
        return PartEnd(part=part.name, outcome="skipped", seconds=clock() - started, reason=lines[-1])
    sys.stderr.write(errors)
    return PartEnd(part=part.name, outcome="failed", seconds=clock() - started, reason=lines[-1][:_KEPT_CHARACTERS])
