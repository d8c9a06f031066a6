"""A launch table of small kernels, one of them good: what `tools.compile_kernels` has to find wrong in the others."""

from __future__ import annotations

import os
from typing import Any

import triton
import triton.language as tl

from pagewire.gpu_executor.kernels.triton.launches.row import CompileCase, CompileCases, LaunchRow

FLOAT16 = {"a": "*fp16", "b": "*fp16", "out": "*fp16", "num_rows": "i32", "width": "i32:16", "depth": "i32:16"}
FLOAT32 = FLOAT16 | {"a": "*fp32", "b": "*fp32", "out": "*fp32"}


@triton.jit
def product_kernel(
    a: tl.tensor,
    b: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    width: tl.tensor,
    depth: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """out = a @ b; depth is a multiple of BLOCK_K, width of BLOCK_N."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    is_row = (rows < num_rows)[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, depth, BLOCK_K):
        left = tl.load(a + rows[:, None] * depth + (start + inner)[None, :], mask=is_row, other=0.0)
        right = tl.load(b + (start + inner)[:, None] * width + columns[None, :])
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(out + rows[:, None] * width + columns[None, :], total.to(out.dtype.element_ty), mask=is_row)


@triton.jit
def copy_kernel(source: tl.tensor, out: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Copy BLOCK elements."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + places, tl.load(source + places))


@triton.jit
def _wrong_places(BLOCK: tl.constexpr) -> tl.tensor:
    return tl.arange(0, BLOCK + 1)


@triton.jit
def wrong_kernel(source: tl.tensor, out: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Not a program: a block's length has to be a power of two, in a function that a kernel calls, too."""
    places = _wrong_places(BLOCK)
    tl.store(out + places, tl.load(source + places))


class _Crash:
    """Takes the process along that compiles it, as a compiler's abort does."""

    @property
    def arg_names(self) -> list[str]:
        os._exit(1)


def product_row(kernel: str, rows: int, columns: int, depth: int, *, num_warps: int, num_stages: int = 1) -> LaunchRow:
    tiles = {"BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": depth}
    return LaunchRow(kernel, {}, tiles, num_warps, num_stages, reason="a sample")


def _case(
    label: str,
    function: Any,
    signature: dict[str, str],
    row: LaunchRow,
    *,
    has_dot: bool = False,
    least: int = 0,
    **options: int,
):
    return CompileCase(label, function, signature, row.constants, has_dot, least, options=options)


def _copy_cases(row: LaunchRow) -> list[CompileCase]:
    aligned = {"source": "*fp16", "out": "*fp16"}
    odd = {"source": "*fp16:2", "out": "*fp16:2"}
    return [_case("aligned", copy_kernel, aligned, row), _case("odd", copy_kernel, odd, row)]


_COPY = {"BLOCK": 128}
_POINTERS = {"source": "*fp16", "out": "*fp16"}

TABLE: tuple[LaunchRow, ...] = (
    LaunchRow("copy", {"size": 512}, _COPY, 4, 1, reason="a sample"),
    LaunchRow("copy", {}, {"BLOCK": 256}, 4, 1, reason="a sample"),
    product_row("product", 64, 64, 64, num_warps=4, num_stages=3),
    product_row("bounded", 64, 64, 64, num_warps=4, num_stages=3),
    product_row("scalar_product", 16, 16, 16, num_warps=4),
    product_row("spilling", 128, 128, 16, num_warps=1),
    product_row("sharing_too_much", 128, 128, 128, num_warps=8, num_stages=4),
    LaunchRow("wrong", {}, _COPY, 4, 1, reason="a sample"),
    LaunchRow("newer", {}, _COPY, 4, 1, reason="a sample"),
    LaunchRow("crashing", {}, _COPY, 4, 1, reason="a sample"),
    LaunchRow("misnamed", {}, _COPY, 4, 1, reason="a sample"),
)

COMPILE_CASES: dict[str, CompileCases] = {
    "copy": _copy_cases,
    "product": lambda row: [_case("fp16", product_kernel, FLOAT16, row, has_dot=True)],
    "bounded": lambda row: [_case("fp16", product_kernel, FLOAT16, row, has_dot=True, maxnreg=40)],
    "scalar_product": lambda row: [_case("fp32", product_kernel, FLOAT32, row, has_dot=True)],
    "spilling": lambda row: [_case("fp16", product_kernel, FLOAT16, row, has_dot=True)],
    "sharing_too_much": lambda row: [_case("fp16", product_kernel, FLOAT16, row, has_dot=True)],
    "wrong": lambda row: [_case("fp16", wrong_kernel, _POINTERS, row)],
    "newer": lambda row: [_case("fp16", copy_kernel, _POINTERS, row, least=90)],
    "crashing": lambda row: [_case("fp16", _Crash(), _POINTERS, row)],
    "misnamed": lambda row: [_case("fp16", copy_kernel, {"source": "*fp16", "target": "*fp16"}, row)],
}
