"""Each kernel has a launch choice for every shape, with its reason, and every one compiles for every device."""

from __future__ import annotations

from itertools import groupby

import pytest

from pagewire.gpu_executor.kernels.triton.compilation.report import faults
from pagewire.gpu_executor.kernels.triton.compilation.targets import CHECKED_TARGETS, TARGETS
from pagewire.gpu_executor.kernels.triton.launches.row import UNMEASURED, LaunchRow
from tests.support.compiled_kernels import ToolRun, compile_kernels

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton.launch_table import COMPILE_CASES, TABLE

# CUDA and ROCm allow 1,024 threads in a program; AMD's warps have 64.
MOST_WARPS = 16


KERNELS = [(kernel, list(rows)) for kernel, rows in groupby(TABLE, key=lambda row: row.kernel)]
each_kernel = pytest.mark.parametrize(("kernel", "rows"), KERNELS, ids=[kernel for kernel, _ in KERNELS])


def test_each_kernel_stands_together_and_can_be_compiled():
    names = [kernel for kernel, _ in KERNELS]
    assert len(names) == len(set(names)), "a kernel's rows are apart"
    assert set(names) == set(COMPILE_CASES)


@each_kernel
def test_a_kernels_last_row_and_no_other_fits_everything(kernel: str, rows: list[LaunchRow]):
    assert [bool(row.at_most) for row in rows] == [True] * (len(rows) - 1) + [False]


@each_kernel
def test_each_row_says_why_and_where_it_was_measured(kernel: str, rows: list[LaunchRow]):
    for row in rows:
        assert len(row.reason) > 20
        assert row.measured == UNMEASURED or any(character.isdigit() for character in row.measured)
        assert row.num_warps in (1, 2, 4, 8, MOST_WARPS)
        assert row.num_stages >= 1


@each_kernel
def test_each_row_stands_for_compilations_that_differ(kernel: str, rows: list[LaunchRow]):
    for row in rows:
        labels = [case.label for case in COMPILE_CASES[kernel](row)]
        assert labels
        assert len(labels) == len(set(labels))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ToolRun:
    """The whole table for all checked targets."""
    return compile_kernels(tmp_path_factory.mktemp("kernels"))


@pytest.mark.slow
@pytest.mark.parametrize("target", CHECKED_TARGETS)
def test_every_row_compiles_without_spills_and_with_matrix_instructions(compiled: ToolRun, target: str):
    reports = [report for report in compiled.reports if report.target == target]
    assert {report.kernel for report in reports} == set(COMPILE_CASES), compiled.output
    assert [line for report in reports for line in faults(report, TARGETS[target])] == []


@pytest.mark.slow
def test_every_row_is_chosen_on_some_device(compiled: ToolRun):
    chosen = {(report.kernel, report.row) for report in compiled.reports}
    assert chosen == {(kernel, number) for kernel, rows in KERNELS for number in range(len(rows))}


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["dense_matmul", "grouped_dense"])
def test_tiles_of_plain_matrices_are_copied_ahead(compiled: ToolRun, kernel: str):
    """Copies ahead need wide loads, which a lost hint of alignment takes away without a word."""
    rows = dict(KERNELS)[kernel]
    reports = [report for report in compiled.reports if report.kernel == kernel and report.target == "sm_80"]
    assert reports
    for report in reports:
        row = rows[report.row]
        tiles = (row.constants["BLOCK_N"] + row.constants["BLOCK_M"]) * row.constants["BLOCK_K"] * 2
        assert report.shared_bytes >= (row.num_stages - 1) * tiles, report.case
