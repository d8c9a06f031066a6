"""A compilation is right, or it is said what is wrong and what helps."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pagewire.gpu_executor.devices.requirements import LEAST_CAPABILITY, MATRIX_ARCHITECTURES, MATRIX_CAPABILITY
from pagewire.gpu_executor.kernels.triton.compilation.report import CompileReport, faults
from pagewire.gpu_executor.kernels.triton.compilation.targets import CHECKED_TARGETS, OLD_TARGETS, TARGETS
from tools.compile_kernels import remark_lines, table_lines


def report(target: str = "sm_80", **facts: Any) -> CompileReport:
    known = {"registers": 96, "matrix_instructions": ("mma.sync",), "shared_bytes": 24576}
    return CompileReport(
        kernel="matmul", row=1, case="fp16", target=target, has_dot=True, seconds=0.5, **(known | facts)
    )


def test_what_fits_has_no_fault():
    assert faults(report(), TARGETS["sm_80"]) == []


@pytest.mark.parametrize(
    ("facts", "part"),
    [
        ({"error": "CompilationError: x"}, "matmul row 1 (fp16) for sm_80 does not compile: CompilationError: x"),
        ({"spilled_bytes": 8}, "keeps 8 bytes of each thread in memory (96 registers are not enough)"),
        ({"matrix_instructions": ()}, "has none of mma.sync"),
        ({"shared_bytes": 166913}, "needs 166913 bytes of shared memory, and a program can have 166912"),
    ],
)
def test_what_is_wrong_is_named(facts: dict[str, Any], part: str):
    (fault,) = faults(report(**facts), TARGETS["sm_80"])
    assert part in fault


@pytest.mark.parametrize("target", OLD_TARGETS)
def test_old_devices_may_spill_but_not_share_more_than_they_have(target: str):
    assert faults(report(target, spilled_bytes=64, matrix_instructions=()), TARGETS[target]) == []
    assert len(faults(report(target, shared_bytes=10**6), TARGETS[target])) == 1


def test_targets_and_requirements_tell_the_same_story():
    nvidia = {divmod(t.architecture, 10): t for t in TARGETS.values() if isinstance(t.architecture, int)}
    assert min(nvidia) == LEAST_CAPABILITY
    assert {capability for capability, target in nvidia.items() if target.matrix_instructions} == {
        capability for capability in nvidia if capability >= MATRIX_CAPABILITY
    }
    assert {name for name, target in TARGETS.items() if target.backend == "hip"} == set(MATRIX_ARCHITECTURES)
    assert {*CHECKED_TARGETS, *OLD_TARGETS} <= set(TARGETS)


def test_the_table_has_a_line_for_each_case_and_a_column_for_each_target():
    lines = table_lines(
        [
            report(),
            report("gfx942", matrix_instructions=(), spilled_bytes=4, shared_bytes=10**5),
            CompileReport(kernel="copy", row=0, case="fp32", target="sm_80", has_dot=False, seconds=0.1, registers=8),
            CompileReport(kernel="copy", row=0, case="fp16", target="sm_80", has_dot=False, seconds=0.1, error="x"),
        ]
    )
    assert [re.split(r"  +", line) for line in lines] == [
        ["kernel", "row", "case", "sm_80", "gfx942"],
        ["matmul", "1", "fp16", "96 r 24 K mma", "96 r ! 4 B spilled ! 98 K ! no matrix instructions"],
        ["copy", "0", "fp32", "8 r", "-"],
        ["copy", "0", "fp16", "! does not compile", "-"],
    ]


def test_what_the_compiler_points_out_is_printed():
    assert remark_lines([report(), report(remarks=("slow",))]) == ["remark: matmul row 1 (fp16) for sm_80: slow"]
