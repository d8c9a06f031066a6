"""`pagewire bench kernels`: the executor's own timing of its kernels, as a table.

The kernels are measured in a process of their own, `python -m pagewire.gpu_executor.bench_kernels --json`, since only
the executor imports torch and its compiled code. What it prints is the contract of `KernelReport`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

import msgspec

from pagewire.ipc.errors import MachineError

from ..text_table import figure, percent, text_table
from .config import BenchKernelsConfig
from .result_file import check_result_file, save_result

Say = Callable[[str], None]

_MODULE = "pagewire.gpu_executor.bench_kernels"


class MachineLimit(msgspec.Struct, frozen=True):
    """One thing that was measured of the machine, in the same run.

    Attributes:
        name: what, like "memory read" or "int8 products".
        unit: GB/s or GOP/s.
    """

    name: str
    value: float
    unit: str


class KernelTiming(msgspec.Struct, frozen=True):
    """One kernel on one shape.

    Attributes:
        kernel: its name and the weights' layout.
        shape: in words.
        us: microseconds a call.
        gb_per_s: bytes that it must read and write, by its time.
        gop_per_s: multiplications and additions, by its time; None where there are hardly any.
        of_limit: share of what the machine can do, by the limit that binds it; from 0 to 1.
    """

    kernel: str
    shape: str
    us: float
    gb_per_s: float | None = None
    gop_per_s: float | None = None
    of_limit: float | None = None


class KernelReport(msgspec.Struct, frozen=True):
    """What the executor's tool prints.

    Attributes:
        title: which kernels, threads and instruction set.
    """

    title: str
    machine: tuple[MachineLimit, ...]
    kernels: tuple[KernelTiming, ...]


def run(config: BenchKernelsConfig, say: Say) -> int:
    """Measure, print the table; return the exit code.

    Raises:
        ConfigError: the place for the result can't be used.
        MachineError: the tool failed.
    """
    check_result_file(config.output_json)
    say("Timing the kernels: about a minute on an idle machine.")
    report = measure(tool_command(config))
    for line in report_lines(report):
        say(line)
    save_result(config.output_json, report)
    return 0


def tool_command(config: BenchKernelsConfig) -> list[str]:
    """Return the command line of the executor's tool."""
    threads = [] if config.cpu_threads is None else ["--threads", str(config.cpu_threads)]
    options = ["--json", "--instruction-set", config.cpu_instruction_set, *threads]
    return [sys.executable, "-P", "-m", _MODULE, *options]


def measure(command: Sequence[str]) -> KernelReport:
    """Run the tool; its log lines go where ours go.

    Raises:
        MachineError: it failed, or printed something else.
    """
    process = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if process.returncode != 0:
        raise MachineError(f"{_MODULE} ended with exit code {process.returncode}; the lines above say more.")
    try:
        return msgspec.json.decode(process.stdout, type=KernelReport)
    except msgspec.DecodeError as exc:
        raise MachineError(f"{_MODULE} printed what is no report: {exc}.") from exc


def report_lines(report: KernelReport) -> list[str]:
    """Return the table, with the machine's limits above it."""
    header = ("kernel", "shape", "us", "GB/s", "GOP/s", "of limit")
    rows = [
        (one.kernel, one.shape, figure(one.us), figure(one.gb_per_s), figure(one.gop_per_s), percent(one.of_limit))
        for one in report.kernels
    ]
    limits = [f"  {limit.name}: {limit.value:.1f} {limit.unit}" for limit in report.machine]
    return [report.title, "What the machine can do, measured in the same run:", *limits, text_table(header, rows)]
