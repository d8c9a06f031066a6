"""Compiles a launch table for several targets, on several processes."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from typing import Any

from pagewire.gpu_executor.kernels.triton.backend import prepare_triton
from pagewire.gpu_executor.kernels.triton.compilation.report import CompileReport
from pagewire.gpu_executor.kernels.triton.compilation.targets import TARGETS, Target
from pagewire.gpu_executor.kernels.triton.launches.row import SHARED_KIB, CompileCase, CompileCases, LaunchRow

_MAX_ERROR_CHARS = 2000  # a compiler may quote the whole program

LAUNCH_TABLE = "pagewire.gpu_executor.kernels.triton.launch_table"


@dataclass(frozen=True, slots=True)
class CompileJob:
    """One compilation, in words that another process understands (a kernel can't be sent to it).

    Attributes:
        table: module that has `TABLE` and `COMPILE_CASES`.
        kernel: whose row.
        row: number of the row among the kernel's.
        case: number of the case among the row's.
        label: the case's.
        has_dot: the case's.
        target: name of the target.
    """

    table: str
    kernel: str
    row: int
    case: int
    label: str
    has_dot: bool
    target: str


def list_jobs(targets: Sequence[str], *, table: str = LAUNCH_TABLE, kernels: Sequence[str] = ()) -> list[CompileJob]:
    """Return the compilations of a launch table.

    Left out is what a launch would not choose on a target: rows for devices with less shared memory, or of which an
    earlier row takes all shapes there, and cases that need a newer NVIDIA device or more shared memory.

    Args:
        targets: their names.
        table: module that has `TABLE` and `COMPILE_CASES`.
        kernels: names of kernels; none: all.

    Raises:
        ConfigError: Triton can't be used here.
        ValueError: a target or a kernel is unknown.
    """
    prepare_triton(interpreted=False)
    rows_of, cases_of = _load_table(table)
    for kind, names, known in (("target", targets, TARGETS), ("kernel", kernels, rows_of)):
        if unknown := sorted(set(names) - set(known)):
            raise ValueError(f"unknown {kind} {', '.join(unknown)}: there are {', '.join(known)}")
    return [
        CompileJob(table, kernel, number, index, case.label, case.has_dot, target)
        for kernel, rows in rows_of.items()
        if not kernels or kernel in kernels
        for number, row in enumerate(rows)
        for index, case in enumerate(cases_of[kernel](row))
        for target in targets
        if is_chosen_on(TARGETS[target], rows, number) and is_for(TARGETS[target], case)
    ]


def is_chosen_on(target: Target, rows: Sequence[LaunchRow], number: int) -> bool:
    """Say whether a launch on a target takes a row for any shape.

    Args:
        target: the device.
        rows: all of the row's kernel, in the order in which they are tried.
        number: which of them.
    """
    bounds = [_bounds_on(target, row) for row in rows[: number + 1]]
    row = bounds.pop()
    if row is None:
        return False

    def takes_all_of_it(earlier: Mapping[str, int]) -> bool:
        return all(name in row and row[name] <= most for name, most in earlier.items())

    return not any(earlier is not None and takes_all_of_it(earlier) for earlier in bounds)


def is_for(target: Target, case: CompileCase) -> bool:
    """Say whether a launch on a target, which takes the case's row there, may cause the case."""
    if target.max_shared_kib < case.least_shared_kib:
        return False
    if case.least_capability == 0:
        return True
    return isinstance(target.architecture, int) and target.architecture >= case.least_capability


def _bounds_on(target: Target, row: LaunchRow) -> dict[str, int] | None:
    """Return the bounds of shape numbers that a row has on a target; None if it is not for the target."""
    bounds = dict(row.at_most)
    if bounds.pop(SHARED_KIB, target.max_shared_kib) < target.max_shared_kib:
        return None
    return bounds


def compile_jobs(jobs: Sequence[CompileJob], *, num_processes: int) -> Iterator[CompileReport]:
    """Compile, and yield a report on each as it is done.

    What Triton writes goes into a temporary folder: nothing that was compiled before is taken, nothing stays.

    Args:
        jobs: what to compile.
        num_processes: that compile at a time.
    """
    with tempfile.TemporaryDirectory(prefix="pagewire-kernels-") as cache:
        # Those with matrix products take seconds, the others tenths: begun last, one would keep all others waiting.
        waiting = sorted(jobs, key=lambda job: not job.has_dot)
        lost: list[CompileJob] = []
        yield from _run(waiting, num_processes, cache, lost.append)
        # A compiler that aborts takes its process along, and the pool with it. Alone, each shows if it was the one.
        for job in lost:
            yield from _run([job], 1, cache, lambda job: None, is_alone=True)


def _run(
    jobs: Sequence[CompileJob],
    num_processes: int,
    cache: str,
    on_lost: Callable[[CompileJob], None],
    *,
    is_alone: bool = False,
) -> Iterator[CompileReport]:
    # Not forked: Triton and torch have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, context, _prepare_process, (cache,)) as pool:
        futures: dict[Future[CompileReport], CompileJob] = {}
        for job in jobs:
            futures[pool.submit(_compile, job)] = job
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenProcessPool:
                if is_alone:
                    yield _report(futures[future], 0.0, error="the compiler ended its process")
                else:
                    on_lost(futures[future])


def _prepare_process(cache: str) -> None:
    os.environ["TRITON_CACHE_DIR"] = cache
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # names of source lines take a tenth of the time, and change no code
    prepare_triton(interpreted=False)


def _compile(job: CompileJob) -> CompileReport:
    # Imports Triton: not before it was prepared.
    from pagewire.gpu_executor.kernels.triton.compilation.compile_case import compile_case

    rows_of, cases_of = _load_table(job.table)
    row = rows_of[job.kernel][job.row]
    case = cases_of[job.kernel](row)[job.case]
    started = time.perf_counter()
    # A report of all that fails is the purpose, and a compiler's stages raise what they like: assertions too.
    try:
        facts = asdict(compile_case(row, case, TARGETS[job.target]))
    except Exception as exc:
        facts = {"error": _reason(exc)}
    return _report(job, time.perf_counter() - started, **facts)


def _reason(error: BaseException) -> str:
    """Return what went wrong, innermost first: in a function that the kernel calls, it is the cause that says it."""
    reasons = []
    cause: BaseException | None = error
    while cause is not None:
        reasons.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__
    return "\n".join(reversed(reasons))[:_MAX_ERROR_CHARS]


def _report(job: CompileJob, seconds: float, **facts: Any) -> CompileReport:  # `CompileReport` has their types
    return CompileReport(
        kernel=job.kernel, row=job.row, case=job.label, target=job.target, has_dot=job.has_dot, seconds=seconds, **facts
    )


def _load_table(name: str) -> tuple[Mapping[str, Sequence[LaunchRow]], Mapping[str, CompileCases]]:
    module = importlib.import_module(name)
    rows: dict[str, list[LaunchRow]] = {}
    for row in module.TABLE:
        rows.setdefault(row.kernel, []).append(row)
    return rows, module.COMPILE_CASES
