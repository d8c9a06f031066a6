"""Compiles each row of the Triton kernels' launch table for GPUs that need not be there, and says what came out.

    python -m tools.compile_kernels                        all rows for all checked targets
    python -m tools.compile_kernels --target sm_75 --kernel rms_norm
    python -m tools.compile_kernels --json report.json     the same as data

A cell of the table reads "registers of a thread, KiB of shared memory of a program, matrix instructions"; what follows
an exclamation mark is wrong, and the exit code is 1. Needs Triton (Linux), no GPU.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from tqdm import tqdm

from pagewire.gpu_executor.kernels.triton.compilation.report import CompileReport, faults
from pagewire.gpu_executor.kernels.triton.compilation.targets import CHECKED_TARGETS, TARGETS
from pagewire.ipc.errors import ConfigError
from tools.compile_jobs import LAUNCH_TABLE, compile_jobs, list_jobs

_KIB = 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print the table and the faults, and return the exit code: 1 if there are any, 2 for a bad call."""
    options = _parse(arguments)
    started = time.perf_counter()
    try:
        jobs = list_jobs(options.target or CHECKED_TARGETS, table=options.table, kernels=options.kernel)
    except (ConfigError, ValueError) as exc:
        print(exc, file=sys.stderr)
        return 2
    done = tqdm(
        compile_jobs(jobs, num_processes=options.jobs), total=len(jobs), unit="kernel", disable=not sys.stderr.isatty()
    )
    order = {(job.kernel, job.row, job.label, job.target): index for index, job in enumerate(jobs)}
    reports = sorted(done, key=lambda report: order[report.kernel, report.row, report.case, report.target])
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(reports)))
    found = [line for report in reports for line in faults(report, TARGETS[report.target])]
    print("\n".join([*table_lines(reports), *remark_lines(reports)]))
    if found:
        print("\n".join(["", "faults:", *found]))
    print(f"\n{len(reports)} compilations, {len(found)} faults, {time.perf_counter() - started:.0f} s")
    return 1 if found else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.compile_kernels",
        description="Compile the Triton kernels for GPUs that need not be there.",
    )
    checked = ", ".join(CHECKED_TARGETS)
    parser.add_argument(
        "--target", action="append", choices=TARGETS, metavar="NAME", help=f"{', '.join(TARGETS)} (default: {checked})"
    )
    parser.add_argument(
        "--kernel", action="append", default=[], metavar="NAME", help="only this one (more than once: these)"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: all CPUs)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the reports there")
    parser.add_argument("--table", default=LAUNCH_TABLE, metavar="MODULE", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def table_lines(reports: Iterable[CompileReport]) -> list[str]:
    """Return the table: a line for each case, a column for each target."""
    cells: dict[tuple[str, int, str], dict[str, str]] = defaultdict(dict)
    seen: set[str] = set()
    for report in reports:
        cells[report.kernel, report.row, report.case][report.target] = _cell(report)
        seen.add(report.target)
    targets = [name for name in TARGETS if name in seen]
    head = ["kernel", "row", "case", *targets]
    body = [
        [kernel, str(row), case, *(of_target.get(target, "-") for target in targets)]
        for (kernel, row, case), of_target in cells.items()
    ]
    widths = [max(len(line[column]) for line in (head, *body)) for column in range(len(head))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in (head, *body)
    ]


def _cell(report: CompileReport) -> str:
    if report.error is not None:
        return "! does not compile"
    target = TARGETS[report.target]
    parts = [f"{report.registers} r"]
    if report.spilled_bytes:
        parts.append(f"! {report.spilled_bytes} B spilled")
    if report.shared_bytes:
        excess = "! " if report.shared_bytes > target.max_shared_kib * _KIB else ""
        parts.append(f"{excess}{math.ceil(report.shared_bytes / _KIB)} K")
    if report.matrix_instructions:
        parts.append("+".join(name.partition(".")[0] for name in report.matrix_instructions))
    elif report.has_dot:
        parts.append("! no matrix instructions" if target.matrix_instructions else "scalar")
    return " ".join(parts)


def remark_lines(reports: Iterable[CompileReport]) -> list[str]:
    """Return what the compiler points out, one line each."""
    return [f"remark: {report.name}: {remark}" for report in reports for remark in report.remarks]


if __name__ == "__main__":
    sys.exit(main())
