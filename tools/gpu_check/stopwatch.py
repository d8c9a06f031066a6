"""Times work on the device.

On a GPU the calls are captured into a graph and replayed: what is timed is the device, not the launches from Python,
which a decode step does not wait for either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

_ROUNDS = 5
_LEAST_S = 0.01  # of a round on a GPU


def seconds_a_call(calls: Sequence[Callable[[], object]], device: str) -> float:
    """Return the median time of a call.

    Args:
        calls: the same work on different data, so that a cache does not hold what the next one reads.
        device: "cuda" or "cpu".
    """
    for call in calls[:3]:
        call()
    if device == "cpu":
        return _host_seconds(calls) / len(calls)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    repeats = max(1, round(_LEAST_S / max(_device_seconds(graph.replay, 1), 1e-7)))
    return median(_device_seconds(graph.replay, repeats) / repeats for _ in range(_ROUNDS)) / len(calls)


def _host_seconds(calls: Sequence[Callable[[], object]]) -> float:
    started = time.perf_counter()
    for call in calls:
        call()
    return time.perf_counter() - started


def _device_seconds(run: Callable[[], object], repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
