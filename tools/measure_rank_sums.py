"""What a sum over ranks costs: `python -m tools.measure_rank_sums [--ranks 2] [--width 576] [--rows 1 16 256]`.

Each rank is a process, as executors are, and joins its peers as they do. A layer has two such sums a step, of the rows
that the step computes. Prints microseconds of one sum in rank order, as CPUs serve: through shared memory, or where
ranks have none through the library (gloo), whose own reduction in any order is then timed as well. With --pin each rank
is bound to cores of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from pagewire.gpu_executor.parallel.connect import connect_ranks
from pagewire.gpu_executor.parallel.rank_group import RankGroup
from pagewire.gpu_executor.parallel.torch_group import ReducingGroup, TorchGroup
from pagewire.ipc.mesh import Mesh
from pagewire.ipc.steps import RankPlacement

NUM_WARM = 20


class Job(NamedTuple):
    """What every rank measures.

    Attributes:
        rendezvous: a file that is not there yet.
        num_ranks: processes.
        width: channels of a row.
        rows: numbers of rows, one sum each.
        repeats: sums of each size.
        is_pinned: whether ranks have cores of their own.
    """

    rendezvous: Path
    num_ranks: int
    width: int
    rows: Sequence[int]
    repeats: int
    is_pinned: bool


class SumTimes(NamedTuple):
    """Microseconds of one sum: the median and the 90th percentile."""

    num_rows: int
    group: str
    median_us: float
    p90_us: float


def measure_rank(job: Job, rank: int) -> list[SumTimes]:
    """Join the other ranks, sum with them, and return this rank's times."""
    torch.set_num_threads(1)
    if job.is_pinned:
        pin(rank, job.num_ranks)
    placement = RankPlacement(rank=rank, num_on_host=job.num_ranks, rendezvous=f"file://{job.rendezvous}")
    peers = connect_ranks(placement, Mesh(tp=job.num_ranks), torch.device("cpu"), is_batch_invariant=True)
    groups: dict[str, RankGroup] = {"in rank order": peers.of_layers}
    if isinstance(peers.of_layers, TorchGroup):
        groups["any order"] = ReducingGroup(peers.of_layers.process_group, torch.device("cpu"))
    return [
        time_sums(group, name, torch.ones(num_rows, job.width), job.repeats)
        for num_rows in job.rows
        for name, group in groups.items()
    ]


def time_sums(group: RankGroup, name: str, x: torch.Tensor, repeats: int) -> SumTimes:
    """Time sums of one size, which all ranks of the group begin at once."""
    times = []
    for i in range(NUM_WARM + repeats):
        own = x.clone()  # a sum may be made in its place
        started = time.perf_counter()
        group.sum_in_order(own)
        if i >= NUM_WARM:
            times.append(1e6 * (time.perf_counter() - started))
    return SumTimes(x.shape[0], name, statistics.median(times), statistics.quantiles(times, n=10)[-1])


def pin(rank: int, num_ranks: int) -> None:
    """Bind this process to its part of the cores that it may use."""
    cores = sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // num_ranks)
    first = rank * each % len(cores)
    os.sched_setaffinity(0, cores[first : first + each])


def measure(job: Job) -> list[SumTimes]:
    """Start the ranks; return the times of rank 0."""
    with multiprocessing.get_context("spawn").Pool(job.num_ranks) as pool:
        return pool.starmap(measure_rank, [(job, rank) for rank in range(job.num_ranks)], chunksize=1)[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.measure_rank_sums", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=576, help="channels of a row; SmolLM2 has 576")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--pin", action="store_true", help="give each rank cores of its own")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        job = Job(Path(directory) / "ranks", asked.ranks, asked.width, asked.rows, asked.repeats, asked.pin)
        times = measure(job)
    where = "each on cores of its own" if asked.pin else "on any cores"
    print(f"float32 sums over {asked.ranks} ranks, {where}, of {os.cpu_count()} on this host")
    for of in times:
        print(f"[{of.num_rows}, {asked.width}] {of.group}: {of.median_us:.0f} us, 90 % within {of.p90_us:.0f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
