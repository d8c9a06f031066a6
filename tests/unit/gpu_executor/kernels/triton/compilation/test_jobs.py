"""What is wrong with a kernel shows when it is compiled for a device that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.gpu_executor.kernels.triton.compilation.report import CompileReport, faults
from pagewire.gpu_executor.kernels.triton.compilation.targets import TARGETS
from tests.support.compiled_kernels import ToolRun, compile_kernels

pytest.importorskip("triton")

pytestmark = pytest.mark.slow

SAMPLES = ("--table", "tests.support.sample_kernels")
GOOD = ("--kernel", "copy", "--kernel", "product")
KINDS = {"sm_70": (), "sm_75": (), "sm_80": ("mma.sync",), "sm_90": ("wgmma.mma_async",), "gfx942": ("v_mfma",)}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> ToolRun:
    """All of the sample table, for one target."""
    return compile_kernels(tmp_path_factory.mktemp("samples"), *SAMPLES, "--target", "sm_80")


def only(run: ToolRun, kernel: str) -> CompileReport:
    (report,) = [report for report in run.reports if report.kernel == kernel]
    return report


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> ToolRun:
    """The good ones, for targets of each kind."""
    directory = tmp_path_factory.mktemp("good")
    run = compile_kernels(directory, *SAMPLES, *GOOD, *(part for name in KINDS for part in ("--target", name)))
    assert [path.name for path in directory.iterdir()] == ["report.json"], "what was compiled stays nowhere"
    return run


def test_a_good_kernel_has_no_fault_anywhere(good: ToolRun):
    assert good.code == 0, good.output
    products = [report for report in good.reports if report.kernel == "product"]
    assert [report.target for report in products] == list(KINDS)
    for report in products:
        assert report.registers is not None
        assert 16 <= report.registers <= 255
        assert 0 < report.shared_bytes <= TARGETS[report.target].max_shared_bytes


@pytest.mark.parametrize(("target", "instructions"), KINDS.items())
def test_products_use_the_matrix_instructions_that_triton_has_for_a_device(
    good: ToolRun, target: str, instructions: tuple[str, ...]
):
    (report,) = [report for report in good.reports if (report.kernel, report.target) == ("product", target)]
    assert report.matrix_instructions == instructions


def test_each_row_and_case_is_compiled(samples: ToolRun):
    assert [(report.row, report.case) for report in samples.reports if report.kernel == "copy"] == [
        (0, "aligned"), (0, "odd"), (1, "aligned"), (1, "odd"),
    ]  # fmt: skip


def test_alignment_changes_what_is_compiled(samples: ToolRun):
    aligned, odd = (report for report in samples.reports if report.kernel == "copy" and report.row == 1)
    assert aligned.registers != odd.registers


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("scalar_product", "has none of mma.sync"),
        ("spilling", "bytes of each thread in memory"),
        ("sharing_too_much", "needs 196608 bytes of shared memory, and a program can have 166912"),
        ("wrong", "range must be a power of 2"),
        ("crashing", "the compiler ended its process"),
        ("misnamed", "arguments missing, unknown or named twice: ['out', 'target']"),
    ],
)
def test_a_fault_is_found_and_named(samples: ToolRun, kernel: str, part: str):
    report = only(samples, kernel)
    (fault,) = faults(report, TARGETS["sm_80"])
    assert part in fault
    assert part in samples.output
    assert samples.code == 1


def test_a_case_for_newer_devices_is_left_out(samples: ToolRun):
    assert "newer" not in {report.kernel for report in samples.reports}


def test_an_unknown_kernel_is_refused_with_those_there_are(tmp_path: Path):
    run = compile_kernels(tmp_path, *SAMPLES, "--kernel", "wrnog")
    assert run.code == 2
    assert "unknown kernel wrnog: there are copy, product" in run.output
