"""What the start took and what it found: the table that is logged once the engine is ready."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pagewire.ipc.outputs import EngineInfo

READY_AFTER = "ready after"
_PHASE_LINE = re.compile(r"  (\S.*?) +(\d+\.\d\d) s$")


class StartupReport:
    """Times the phases of this process and adds those of the engine's processes."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._phases: list[tuple[str, float]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase of this process."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._phases.append((name, time.perf_counter() - started))

    def lines(self, info: EngineInfo) -> list[str]:
        """Return the table, the memory budget and the blocks, one log line each."""
        total_s = time.perf_counter() - self._started
        rows = [
            *self._phases,
            *((f"engine: {name}", seconds) for name, seconds in info.startup),
            (READY_AFTER, total_s),
        ]
        table = [f"  {name:<40} {seconds:7.2f} s" for name, seconds in rows]
        return ["startup (phases of different processes overlap):", *table, *describe_engine(info)]


def read_phases(log_lines: Iterable[str]) -> dict[str, float]:
    """Return the seconds of each phase, out of a log that holds the lines of a report."""
    found = (_PHASE_LINE.search(line.rstrip()) for line in log_lines)
    return {match[1]: float(match[2]) for match in found if match is not None}


def describe_engine(info: EngineInfo) -> list[str]:
    """Return what the engine holds: the model, the memory budget and the KV blocks."""
    device = f"{info.device} ({info.device_name})" if info.device_name else info.device
    on_cpu, on_gpu = (info.num_blocks, 0) if info.device == "cpu" else (0, info.num_blocks)
    num_tokens = info.num_blocks * info.block_size
    num_longest = num_tokens / info.max_model_len
    return [
        f"{info.model}: {info.dtype} on {device}, context of {info.max_model_len} tokens{_layout(info)}",
        *([info.memory] if info.memory else []),
        f"# GPU blocks: {on_gpu}, # CPU blocks: {on_cpu}",
        f"KV pool: {num_tokens} tokens of {info.kv_cache_dtype}, {num_longest:.1f} requests of the longest context",
    ]


def _layout(info: EngineInfo) -> str:
    """Return who computes the model, as the end of a line: nothing where one executor does."""
    tp, pp, num_cores = info.tensor_parallel_size, info.pipeline_parallel_size, info.data_parallel_size
    parts = []
    if num_cores > 1:
        parts.append(f"{num_cores} cores")
    if tp * pp > 1:
        parts.append(f"{tp * pp} executors{' each' if parts else ''} (tp {tp} x pp {pp})")
    return f"; {' of '.join(parts)}" if parts else ""
