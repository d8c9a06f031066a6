from __future__ import annotations

import sys

import msgspec
import pytest

from pagewire.frontend.bench.offline.config import BenchKernelsConfig
from pagewire.frontend.bench.offline.kernels import (
    KernelReport,
    KernelTiming,
    MachineLimit,
    measure,
    report_lines,
    tool_command,
)
from pagewire.ipc.errors import MachineError

REPORT = KernelReport(
    title="cpu kernels, avx2, 2 threads",
    machine=(MachineLimit("memory read", 17.2, "GB/s"), MachineLimit("int8 products", 190.0, "GOP/s")),
    kernels=(
        KernelTiming("linear int4", "1 x 576 x 1536", 12.34, 15.5, 30.0, 0.9),
        KernelTiming("rms_norm", "16 x 576", 3.0),
    ),
)

TABLE = """\
kernel                shape    us  GB/s  GOP/s  of limit
linear int4  1 x 576 x 1536  12.3  15.5   30.0     90.0%
rms_norm           16 x 576   3.0     -      -         -"""


def test_the_table_puts_figures_beside_the_machines_limits():
    assert report_lines(REPORT) == [
        "cpu kernels, avx2, 2 threads",
        "What the machine can do, measured in the same run:",
        "  memory read: 17.2 GB/s",
        "  int8 products: 190.0 GOP/s",
        TABLE,
    ]


def test_the_tool_is_told_what_to_run_on():
    options = tool_command(BenchKernelsConfig(cpu_threads=2, cpu_instruction_set="portable"))[4:]
    assert options == ["--json", "--instruction-set", "portable", "--threads", "2"]


def test_the_report_comes_from_a_process_of_its_own():
    code = f"print({msgspec.json.encode(REPORT).decode()!r})"
    assert measure([sys.executable, "-c", code]) == REPORT


@pytest.mark.parametrize(("code", "part"), [("raise SystemExit(3)", "exit code 3"), ("print('no')", "no report")])
def test_a_tool_that_fails_is_said(code: str, part: str):
    with pytest.raises(MachineError, match=part):
        measure([sys.executable, "-c", code])
