"""Products of tokens with their experts, all experts in one launch: a tile of tokens of one expert is a program's.

The sums are those of the products for one matrix (`dense_steps`, `quantized_steps`), with every channel in one order;
only rows are looked up, and the matrix. A row's bits so depend on its tile's shape alone, which a launch row settles.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ..dense_matmul import dense_steps
from ..dot_dtype import dot_dtype, triton_dtype
from ..launches.mixture import GROUPED_DENSE, GROUPED_QUANTIZED
from ..launches.row import CompileCase, LaunchRow, pick
from ..packed_weight import UNIT_MULTIPLE
from ..quantized_matmul import quantized_steps
from .group import PairGroups, find_tile
from .table import DenseTable, MatrixTable, PackedTable


@triton.jit
def pointer_at(address: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    """Return what an address points at, aligned as memory of tensors is.

    The hint has to be on the pointer: an integer's is lost, and with it wide loads and the pipeline that needs them.
    """
    return tl.multiple_of(address.to(tl.pointer_type(DTYPE)), 16)


@triton.jit
def grouped_dense_kernel(
    x: tl.tensor,
    order: tl.tensor,
    ends: tl.tensor,
    matrices: tl.tensor,
    out: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    in_features: tl.tensor,
    out_features: tl.tensor,
    PAIRS_A_ROW: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    PADDED_EXPERTS: tl.constexpr,
    WEIGHT_DTYPE: tl.constexpr,
    IS_EVEN: tl.constexpr,
    DOT_DTYPE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """Multiply BLOCK_N rows of an expert's matrix by BLOCK_M rows of x, and put results where their pairs are."""
    expert, begin, end = find_tile(ends, tl.program_id(0), NUM_EXPERTS, PADDED_EXPERTS, BLOCK_M)
    if expert >= NUM_EXPERTS:
        return
    places = begin + tl.arange(0, BLOCK_M)
    is_row = places < end
    pairs = tl.load(order + places, mask=is_row, other=0).to(tl.int64)
    n = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_real = n < out_features
    matrix = pointer_at(tl.load(matrices + expert), WEIGHT_DTYPE)
    total = dense_steps(
        x + pairs // PAIRS_A_ROW * x_stride, matrix + n * in_features, is_row, is_real,
        0, tl.cdiv(in_features, BLOCK_K), in_features, IS_EVEN, DOT_DTYPE, BLOCK_N, BLOCK_M, BLOCK_K,
    )  # fmt: skip
    place = out + pairs[None, :] * out_stride + n[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=is_row[None, :] & is_real[:, None])


@triton.jit(do_not_specialize=["num_steps"])
def grouped_quantized_kernel(
    x: tl.tensor,
    order: tl.tensor,
    ends: tl.tensor,
    words: tl.tensor,
    scales: tl.tensor,
    out: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    in_features: tl.tensor,
    out_features: tl.tensor,
    padded_rows: tl.tensor,
    num_steps: tl.tensor,
    PAIRS_A_ROW: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    PADDED_EXPERTS: tl.constexpr,
    SCALE_DTYPE: tl.constexpr,
    WIDTH: tl.constexpr,
    FIELDS: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    IS_STEPWISE: tl.constexpr,
    HAS_MINIMUM: tl.constexpr,
    IS_EVEN: tl.constexpr,
    UNITS: tl.constexpr,
    DOT_DTYPE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
) -> None:
    """Multiply BLOCK_N rows of an expert's packed matrix by BLOCK_M rows of x, likewise."""
    expert, begin, end = find_tile(ends, tl.program_id(0), NUM_EXPERTS, PADDED_EXPERTS, BLOCK_M)
    if expert >= NUM_EXPERTS:
        return
    places = begin + tl.arange(0, BLOCK_M)
    is_row = places < end
    pairs = tl.load(order + places, mask=is_row, other=0).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    my_words = pointer_at(tl.load(words + expert), tl.int16)
    my_scales = pointer_at(tl.load(scales + expert), SCALE_DTYPE)
    first_step = tl.full([], 0, tl.int32)
    total = quantized_steps(
        x + pairs // PAIRS_A_ROW * x_stride, my_words, my_scales, n, is_row, first_step, num_steps, in_features,
        padded_rows, WIDTH, FIELDS, IS_FLOAT, IS_STEPWISE, HAS_MINIMUM, IS_EVEN, UNITS, DOT_DTYPE, BLOCK_N, BLOCK_M,
    )  # fmt: skip
    place = out + pairs[None, :] * out_stride + n[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=is_row[None, :] & (n < out_features)[:, None])


def grouped_product(
    x: Tensor, table: MatrixTable, groups: PairGroups, out: Tensor, *, is_by_pair: bool, pairs_as: int
) -> None:
    """Multiply each pair's row by its expert's matrix.

    Args:
        x: float16, bfloat16 or float32, the last dimension contiguous; [num_pairs, in_features], a row a pair, or
            [num_tokens, in_features], a row a token.
        table: the matrices, on x's device.
        groups: the pairs of each expert.
        out: [num_pairs, out_features], x's dtype, the last dimension contiguous; rows of pairs in `groups` are written.
        is_by_pair: whether x has a row a pair.
        pairs_as: choose the launch for so many pairs an expert.
    """
    num_experts = groups.ends.shape[0]
    shared = {
        "PAIRS_A_ROW": 1 if is_by_pair else groups.num_chosen,
        "NUM_EXPERTS": num_experts,
        "PADDED_EXPERTS": triton.next_power_of_2(num_experts),
        "DOT_DTYPE": dot_dtype(x.dtype),
    }
    match table:
        case DenseTable():
            _launch_dense(x, table, groups, out, shared, pick(GROUPED_DENSE, pairs=pairs_as))
        case PackedTable():
            _launch_quantized(x, table, groups, out, shared, pick(GROUPED_QUANTIZED, pairs=pairs_as))


def _launch_dense(
    x: Tensor, table: DenseTable, groups: PairGroups, out: Tensor, shared: dict[str, Any], row: LaunchRow
) -> None:
    weight, in_features, out_features = table.like.weight, x.shape[1], table.out_features
    grid = (groups.max_tiles(row.constants["BLOCK_M"]), triton.cdiv(out_features, row.constants["BLOCK_N"]))
    grouped_dense_kernel[grid](
        x,
        groups.order,
        groups.ends,
        table.matrices,
        out,
        x.stride(0),
        out.stride(0),
        in_features,
        out_features,
        WEIGHT_DTYPE=triton_dtype(weight.dtype),
        IS_EVEN=in_features % row.constants["BLOCK_K"] == 0,
        **shared,
        **row.constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )


def _launch_quantized(
    x: Tensor, table: PackedTable, groups: PairGroups, out: Tensor, shared: dict[str, Any], row: LaunchRow
) -> None:
    weight = table.like
    grid = (groups.max_tiles(row.constants["BLOCK_M"]), weight.padded_rows // row.constants["BLOCK_N"])
    grouped_quantized_kernel[grid](
        x,
        groups.order,
        groups.ends,
        table.words,
        table.scales,
        out,
        x.stride(0),
        out.stride(0),
        weight.in_features,
        weight.out_features,
        weight.padded_rows,
        weight.num_units // UNIT_MULTIPLE,
        SCALE_DTYPE=triton_dtype(weight.scales.dtype),
        WIDTH=weight.width,
        FIELDS=weight.fields,
        IS_FLOAT=weight.is_float,
        IS_STEPWISE=weight.scale_channels == weight.step_channels,
        HAS_MINIMUM=weight.has_minimum,
        IS_EVEN=weight.in_features == weight.num_units * weight.unit_channels,
        UNITS=UNIT_MULTIPLE,
        **shared,
        **row.constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )


def dense_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row of plain matrices: experts in both dtypes of 16 bits, and an adapter alone."""
    return [
        _compile_case(
            row, f"{dtype}, {num_experts} experts", grouped_dense_kernel, dtype, num_experts, {"matrices": "*i64"},
            {"WEIGHT_DTYPE": kind, "IS_EVEN": num_experts > 1, "DOT_DTYPE": kind},
        )
        for dtype, kind, num_experts in (("bf16", tl.bfloat16, 128), ("fp16", tl.float16, 8), ("bf16", tl.bfloat16, 1))
    ]  # fmt: skip


def quantized_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row of packed matrices: int4 in small and in large groups, int8 and fp8."""
    flags = dict.fromkeys(("IS_FLOAT", "IS_STEPWISE", "HAS_MINIMUM"), False)
    kinds: list[tuple[str, Any, dict[str, Any]]] = [
        ("int4", tl.int64, {"WIDTH": 16, "FIELDS": 4, "HAS_MINIMUM": True}),
        ("int4 in groups of 128", tl.int32, {"WIDTH": 16, "FIELDS": 4, "HAS_MINIMUM": True, "IS_STEPWISE": True}),
        ("int8", tl.int32, {"WIDTH": 32, "FIELDS": 2}),
        ("fp8", tl.float32, {"WIDTH": 32, "FIELDS": 2, "IS_FLOAT": True, "IS_STEPWISE": True}),
    ]
    tables = {"words": "*i64", "scales": "*i64", "padded_rows": "i32:16", "num_steps": "i32"}
    return [
        _compile_case(
            row, f"{kind}, bf16", grouped_quantized_kernel, "bf16", 128, tables,
            flags | constants | {"SCALE_DTYPE": scales, "IS_EVEN": True, "UNITS": UNIT_MULTIPLE}
            | {"DOT_DTYPE": tl.bfloat16},
        )
        for kind, scales, constants in kinds
    ]  # fmt: skip


def _compile_case(
    row: LaunchRow,
    label: str,
    function: Any,
    dtype: str,
    num_experts: int,
    tables: dict[str, str],
    constants: dict[str, Any],
) -> CompileCase:
    return CompileCase(
        label=label,
        function=function,
        signature={"x": f"*{dtype}", "order": "*i32", "ends": "*i32", "out": f"*{dtype}"}
        | tables
        | dict.fromkeys(("x_stride", "out_stride", "in_features", "out_features"), "i32:16"),
        constants={**constants, **row.constants}
        | {"PAIRS_A_ROW": 8 if num_experts > 1 else 1, "NUM_EXPERTS": num_experts, "PADDED_EXPERTS": num_experts},
        has_dot=True,
    )
