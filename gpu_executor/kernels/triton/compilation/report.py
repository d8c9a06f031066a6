"""What compiling the launch table showed, as data."""

from __future__ import annotations

import msgspec

from .targets import OLD_TARGETS, Target


class CompileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One case of one row, compiled for one target.

    Attributes:
        kernel: the row's kernel.
        row: the row's number among that kernel's rows.
        case: the case's label.
        target: the target's name.
        has_dot: whether the case wants matrix instructions.
        seconds: that compiling took.
        registers: see `CodeFacts`, as the four below; None if it does not compile.
        error: why it does not compile.
    """

    kernel: str
    row: int
    case: str
    target: str
    has_dot: bool
    seconds: float
    registers: int | None = None
    spilled_bytes: int = 0
    shared_bytes: int = 0
    matrix_instructions: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    error: str | None = None

    @property
    def name(self) -> str:
        """What was compiled, for people."""
        return f"{self.kernel} row {self.row} ({self.case}) for {self.target}"


def faults(report: CompileReport, target: Target) -> list[str]:
    """Return what is wrong with a compilation, one line each.

    On devices without matrix units only what keeps a kernel from running counts: see `OLD_TARGETS`.
    """
    if report.error is not None:
        return [f"{report.name} does not compile: {report.error}"]
    found = []
    if report.shared_bytes > target.max_shared_kib * 1024:
        found.append(
            f"{report.name} needs {report.shared_bytes} bytes of shared memory, and a program can have"
            f" {target.max_shared_kib * 1024}: take smaller tiles or fewer stages"
        )
    if target.name in OLD_TARGETS:
        return found
    if report.spilled_bytes:
        found.append(
            f"{report.name} keeps {report.spilled_bytes} bytes of each thread in memory ({report.registers} registers"
            " are not enough): take smaller tiles or more warps"
        )
    if report.has_dot and not report.matrix_instructions:
        found.append(f"{report.name} has none of {', '.join(target.matrix_instructions)}: see dtypes and tile sizes")
    return found
