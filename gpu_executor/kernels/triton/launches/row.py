"""One row of the launch table: for which shapes, with which constants, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

UNMEASURED = "unmeasured"
"""What a row's `measured` says that nobody has timed on a device yet."""

SHARED_KIB = "shared_kib"
"""The number of a device by which a row may be chosen besides those of the shape: KiB of shared memory that one program
can have there, 227 on an H100, 163 on an A100, 99 on an L40S, 64 on an MI300."""


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """How a kernel is launched for some shapes.

    The first row of a kernel that fits is taken, and the last one of each kernel fits everything.

    Attributes:
        kernel: name of the kernel, the key of its `CompileCases` too.
        at_most: upper bounds, inclusive, of the shape numbers (and `SHARED_KIB`) by which the kernel's launcher picks;
            a number that is not named may be anything.
        constants: the kernel's compile-time constants that are chosen here (tiles).
        num_warps: warps of a program.
        num_stages: depth of the software pipeline of loads.
        reason: why these and not others.
        measured: device, figure and command, or `UNMEASURED`.
    """

    kernel: str
    at_most: Mapping[str, int]
    constants: Mapping[str, int]
    num_warps: int
    num_stages: int
    reason: str
    measured: str = UNMEASURED

    def fits(self, shape: Mapping[str, int]) -> bool:
        """Say whether the row is for this shape."""
        return all(shape[name] <= most for name, most in self.at_most.items())


@dataclass(frozen=True, slots=True)
class CompileCase:
    """One compilation of a kernel, as a launch with a row's choices would cause it.

    Attributes:
        label: what tells it from the row's other cases ("fp16, head_dim 128").
        function: the `triton.jit` function.
        signature: argument name -> type ("*fp16", "*i32", "i32", "fp32", ...) of all that are no constants. A launch
            specializes for multiples of 16, and wide loads depend on it: "i32:16" is a stride or size that is one in
            the models there are. Pointers are aligned to 16 bytes, as tensors are; "*fp16:2" is one that is not.
        constants: argument name -> value of all that are.
        has_dot: whether matrix instructions must be in what comes out.
        least_capability: the least NVIDIA compute capability that has what it uses, times 10, and no other maker's
            device has it; 0: all have.
        least_shared_kib: shared memory that a program can have where the row is taken, at least; 0: any.
        options: the compiler's that the launch sets besides warps and stages ("enable_fp_fusion").
    """

    label: str
    function: Any  # triton.JITFunction, which is untyped
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    has_dot: bool
    least_capability: int = 0
    least_shared_kib: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


CompileCases = Callable[[LaunchRow], Sequence[CompileCase]]
"""Returns the compilations that a row of one kernel stands for: at least one for each dtype that it runs in."""


def pick(rows: Sequence[LaunchRow], **shape: int) -> LaunchRow:
    """Return the first of a kernel's rows that fits a shape."""
    for row in rows:
        if row.fits(shape):
            return row
    raise AssertionError(f"no row of {rows[0].kernel} fits {shape}: the last one has to fit all")
