"""One kernel, compiled as a launch would compile it, for a device that need not be there."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ..launches.row import CompileCase, LaunchRow
from .code_facts import CodeFacts, read_code_facts
from .targets import Target

_ALIGNED = 16  # bytes of a pointer, or the divisor of an integer, that Triton specializes for


def compile_case(row: LaunchRow, case: CompileCase, target: Target) -> CodeFacts:
    """Compile a case with a row's choices, and return what came out.

    Triton keeps what it compiles in the folder that TRITON_CACHE_DIR names.

    Raises:
        ValueError: the case does not name each argument of the kernel once.
        triton.errors.TritonError, RuntimeError, and what else the compiler may raise: it does not compile.
    """
    _check_arguments(case)
    source = ASTSource(
        case.function,
        {name: _type_of(case, name) for name in case.function.arg_names},
        {(case.function.arg_names.index(name),): value for name, value in case.constants.items()},
        {
            (index,): [["tt.divisibility", _ALIGNED]]
            for index, name in enumerate(case.function.arg_names)
            if name in case.signature and _is_aligned(case.signature[name])
        },
    )
    device = GPUTarget(target.backend, target.architecture, target.warp_size)
    with _ptxas_log() as log:
        options = {"num_warps": row.num_warps, "num_stages": row.num_stages, **case.options}
        compiled = triton.compile(source, target=device, options=options)
    assembly = compiled.asm["amdgcn" if target.backend == "hip" else "ptx"]
    return read_code_facts(target, assembly, log.getvalue(), compiled.metadata.shared)


def _check_arguments(case: CompileCase) -> None:
    named = [*case.signature, *case.constants]
    if sorted(named) != sorted(case.function.arg_names):
        kernel = case.function.__name__
        difference = sorted(set(named) ^ set(case.function.arg_names))
        raise ValueError(f"{kernel} ({case.label}): arguments missing, unknown or named twice: {difference or named}")


def _type_of(case: CompileCase, name: str) -> str:
    return "constexpr" if name in case.constants else case.signature[name].partition(":")[0]


def _is_aligned(kind: str) -> bool:
    """Say whether a launch would find a multiple of 16: for pointers the default, for integers the exception."""
    _, _, alignment = kind.partition(":")
    return kind.startswith("*") if not alignment else int(alignment) % _ALIGNED == 0


@contextlib.contextmanager
def _ptxas_log() -> Iterator[io.StringIO]:
    """Collect what ptxas says about registers; Triton prints it if asked to."""
    log = io.StringIO()
    os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"
    with contextlib.redirect_stdout(log):
        yield log
