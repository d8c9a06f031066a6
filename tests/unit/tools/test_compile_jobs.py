"""What is wrong with a kernel shows when it is compiled for a device that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.gpu_executor.kernels.triton.compilation.report import CompileReport, faults
from pagewire.gpu_executor.kernels.triton.compilation.targets import TARGETS
from pagewire.gpu_executor.kernels.triton.launches.row import CompileCase, LaunchRow
from tests.support.compiled_kernels import ToolRun, compile_kernels
from tools.compile_jobs import is_chosen_on, is_for

pytest.importorskip("triton")

SAMPLES = ("--table", "tests.support.sample_kernels")
GOOD = ("--kernel", "copy", "--kernel", "product")
KINDS = {"sm_70": (), "sm_75": (), "sm_80": ("mma.sync",), "sm_90": ("wgmma.mma_async",), "gfx942": ("v_mfma",)}


def row(**at_most: int) -> LaunchRow:
    return LaunchRow("matmul", at_most, {}, 4, 1, reason="a sample")


def chosen(rows: list[LaunchRow], target: str) -> list[int]:
    return [number for number in range(len(rows)) if is_chosen_on(TARGETS[target], rows, number)]


def test_a_row_for_little_shared_memory_is_chosen_where_there_is_little():
    rows = [row(size=64, shared_kib=99), row(size=64), row(shared_kib=163), row()]
    assert chosen(rows, "sm_89") == [0, 2]  # 1 and 3 would take what 0 and 2 have taken
    assert chosen(rows, "sm_80") == [1, 2]
    assert chosen(rows, "sm_90") == [1, 3]


def test_a_row_that_takes_more_shapes_than_earlier_ones_is_chosen():
    assert chosen([row(size=64, heads=2), row(size=64), row(size=128), row()], "sm_80") == [0, 1, 2, 3]


def test_a_row_behind_one_that_takes_all_its_shapes_is_not_chosen():
    assert chosen([row(size=128), row(size=64), row(size=64, heads=2), row()], "sm_80") == [0, 3]


def test_a_case_for_newer_nvidia_devices_is_for_no_older_one_and_no_other_makers():
    case = CompileCase("e4m3", None, {}, {}, has_dot=False, least_capability=89)
    assert [name for name in TARGETS if is_for(TARGETS[name], case)] == ["sm_89", "sm_90", "sm_100", "sm_120"]
    anywhere = CompileCase("e4m3", None, {}, {}, has_dot=False)
    assert all(is_for(target, anywhere) for target in TARGETS.values())


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


@pytest.mark.slow
def test_a_good_kernel_has_no_fault_anywhere(good: ToolRun):
    assert good.code == 0, good.output
    products = [report for report in good.reports if report.kernel == "product"]
    assert [report.target for report in products] == list(KINDS)
    for report in products:
        assert report.registers is not None
        assert 16 <= report.registers <= 255
        assert 0 < report.shared_bytes <= 1024 * TARGETS[report.target].max_shared_kib


@pytest.mark.slow
@pytest.mark.parametrize(("target", "instructions"), KINDS.items())
def test_products_use_the_matrix_instructions_that_triton_has_for_a_device(
    good: ToolRun, target: str, instructions: tuple[str, ...]
):
    (report,) = [report for report in good.reports if (report.kernel, report.target) == ("product", target)]
    assert report.matrix_instructions == instructions


@pytest.mark.slow
def test_each_row_and_case_is_compiled(samples: ToolRun):
    assert [(report.row, report.case) for report in samples.reports if report.kernel == "copy"] == [
        (0, "aligned"), (0, "odd"), (1, "aligned"), (1, "odd"),
    ]  # fmt: skip


@pytest.mark.slow
def test_alignment_changes_what_is_compiled(samples: ToolRun):
    aligned, odd = (report for report in samples.reports if report.kernel == "copy" and report.row == 1)
    assert aligned.registers != odd.registers


@pytest.mark.slow
def test_options_of_the_launch_are_those_of_the_compilation(samples: ToolRun):
    free, bounded = only(samples, "product").registers, only(samples, "bounded").registers
    assert free is not None
    assert bounded is not None
    assert bounded <= 40 < free


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_case_for_newer_devices_is_left_out(samples: ToolRun):
    assert "newer" not in {report.kernel for report in samples.reports}


@pytest.mark.slow
def test_an_unknown_kernel_is_refused_with_those_there_are(tmp_path: Path):
    run = compile_kernels(tmp_path, *SAMPLES, "--kernel", "wrnog")
    assert run.code == 2
    assert "unknown kernel wrnog: there are copy, product" in run.output
