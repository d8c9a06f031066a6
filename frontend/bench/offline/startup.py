"""`pagewire bench startup`: how long a server takes from the command until it is ready, by phase.

Every start is the real thing, `pagewire serve` as a process. A cold one begins with the model's files out of the
system's page cache, as after a reboot; Python and the libraries stay in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tqdm import tqdm

from pagewire.ipc.errors import ConfigError, MachineError

from ...supervisor.startup_report import READY_AFTER, read_phases
from ..text_table import figure, text_table
from .config import BenchStartupConfig
from .result_file import check_result_file, save_result

Say = Callable[[str], None]

_STOP_TIMEOUT_S = 30.0
_READY = "ready: serving "
_BEFORE = "start Python, imports of the frontend"
_TOTAL = "from the command until ready"


@dataclass(frozen=True, slots=True)
class Start:
    """One start: (phase, seconds), in order. Phases of different processes overlap; the last one is the whole."""

    phases: Sequence[tuple[str, float]]


def run(config: BenchStartupConfig, model_path: Path, arguments: Sequence[str], say: Say) -> int:
    """Start servers one after the other, print the medians of their phases; return the exit code.

    Args:
        config: how often, and what becomes of the figures.
        model_path: the model's file or directory, whose files are put out of the page cache for cold starts.
        arguments: of `pagewire serve`, the model among them.
        say: prints a line.

    Raises:
        ConfigError: a file can't be used, or this system can't drop a file from its page cache.
        MachineError: a server does not start.
    """
    check_result_file(config.output_json)
    if config.num_iters_cold and not hasattr(os, "posix_fadvise"):
        raise ConfigError("this system can't drop files from its page cache; give --num-iters-cold 0.")
    plan = [
        *(["cold"] * config.num_iters_cold),
        *(["warm-up"] * config.num_iters_warmup if config.num_iters_warm else []),
        *(["warm"] * config.num_iters_warm),
    ]
    starts: dict[str, list[Start]] = {}
    is_silent = config.disable_tqdm or not sys.stderr.isatty()
    for kind in tqdm(plan, desc="Starts", disable=is_silent):
        if kind == "cold":
            drop_from_page_cache(model_path)
        starts.setdefault(kind, []).append(start_server(arguments))
    starts.pop("warm-up", None)
    say(startup_table(starts))
    save_result(config.output_json, startup_document(starts))
    return 0


def start_server(arguments: Sequence[str]) -> Start:
    """Start a server, wait until it is ready, stop it.

    Raises:
        MachineError: it ended before it was ready.
    """
    with tempfile.TemporaryDirectory(prefix="pagewire-") as directory:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "pagewire", "serve", *arguments, "--uds", str(Path(directory) / "http.sock")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            return _watch(process, started)
        finally:
            process.terminate()
            try:
                process.communicate(timeout=_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def drop_from_page_cache(path: Path) -> None:
    """Have the next reading of a file, or of all files of a directory, come from the disk."""
    for file in [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file()):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def startup_table(starts: Mapping[str, Sequence[Start]]) -> str:
    """Return the medians in seconds, a row a phase and a column a kind of start."""
    medians = {kind: _medians(of) for kind, of in starts.items()}
    names = dict.fromkeys(name for phases in medians.values() for name in phases if name != _TOTAL)
    rows = [[name, *(figure(medians[kind].get(name), 2) for kind in starts)] for name in [*names, _TOTAL]]
    header = ["phase (s, medians; processes overlap)", *(f"{kind} ({len(of)})" for kind, of in starts.items())]
    return text_table(header, rows)


def startup_document(starts: Mapping[str, Sequence[Start]]) -> dict[str, Any]:  # Any: JSON
    """Return the starts as they are saved."""
    return {
        kind: {"median_s": _medians(of), "starts_s": [dict(one.phases) for one in of]} for kind, of in starts.items()
    }


def _watch(process: subprocess.Popen[str], started: float) -> Start:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if _READY in line:
            total_s = time.perf_counter() - started
            phases = read_phases(lines)
            ready_after_s = phases.pop(READY_AFTER)
            return Start([(_BEFORE, total_s - ready_after_s), *phases.items(), (_TOTAL, total_s)])
    raise MachineError(f"the server did not start: {' '.join(lines[-1:]).strip() or 'it said nothing'}")


def _medians(starts: Sequence[Start]) -> dict[str, float]:
    each = [dict(one.phases) for one in starts]
    names = dict.fromkeys(name for phases in each for name in phases)
    return {name: median(phases[name] for phases in each if name in phases) for name in names}
