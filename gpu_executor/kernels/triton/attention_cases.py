"""What the rows of attention compile to: the variants of the kernels that models cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import triton.language as tl

from .attention_kernel import attention_kernel, combine_kernel
from .fp8 import E4M3, E5M2, NO_FP8
from .launches.attention import ROWS
from .launches.row import CompileCase, LaunchRow
from .paged_attention import attention_constants

_TENSORS = ("query", "key_cache", "value_cache", "output")
_FLOATS = ("logit_factor", "soft_cap", "value_scale")
_STRIDES = ("query_token_stride", "query_head_stride")
_COUNTS = (
    "num_reqs",
    "tiles_per_request",
    "least_query_len",
    "most_query_len",
    "num_slots",
    "max_splits",
    "table_stride",
    "window",
)


class _Variant(NamedTuple):
    """What a model, a device or the step causes that no row chooses."""

    dtype: str = "bf16"
    fp8: int = NO_FP8
    widens_e4m3: bool = False
    has_window: bool = False
    has_soft_cap: bool = False
    is_searched: bool = False
    is_shared: bool = False


def decode_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row for decodes, with splits that programs share and without."""
    if row.at_most.get("kv_bytes") == 1:
        return [
            _case(row, _Variant("fp16", E4M3, has_window=True, has_soft_cap=True)),
            _case(row, _Variant(fp8=E4M3, widens_e4m3=True)),
            _case(row, _Variant(fp8=E5M2)),
        ]
    cases = [_case(row, _Variant(_dtype(row), is_shared=True))]
    if _is_for_16_bits(row):
        cases.append(_case(row, _Variant(has_window=True, has_soft_cap=True)))
    return cases


def short_chunk_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row for short chunks: of many requests, in one of them with shared splits."""
    cases = [] if "kv_bytes" in row.at_most else [_case(row, _Variant(_dtype(row), is_searched=True))]
    everything = _Variant(has_window=True, has_soft_cap=True, is_searched=True, is_shared=True)
    if _is_for_16_bits(row) and not _is_for_128_channels(row):
        cases.append(_case(row, everything))
    if _is_for_128_channels(row):
        # Where there is little shared memory, 8-bit caches have a row of their own.
        takes_fp8 = "kv_bytes" in row.at_most or "shared_kib" not in row.at_most
        cases.append(_case(row, everything._replace(fp8=E4M3 if takes_fp8 else NO_FP8)))
        if takes_fp8:
            cases.append(_case(row, _Variant(fp8=E4M3, widens_e4m3=True, is_searched=True)))
    return cases


def chunk_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row for chunks: many requests, one program for all splits of a tile."""
    cases = [_case(row, _Variant(_dtype(row), is_searched=True))]
    if _is_for_16_bits(row) and not _is_for_128_channels(row):
        cases.append(_case(row, _Variant(has_window=True, has_soft_cap=True, is_searched=True)))
    if _is_for_128_channels(row):
        cases += [
            _case(row, _Variant(fp8=E5M2, has_window=True, has_soft_cap=True, is_searched=True)),
            _case(row, _Variant(fp8=E4M3, widens_e4m3=True, is_searched=True)),
        ]
    return cases


def combine_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row of the merge: a model's of 128 channels, with a window or without."""
    return [
        CompileCase(
            label=f"bf16, {'window' if has_window else 'no window'}",
            function=combine_kernel,
            signature={
                "partial_sums": "*fp32",
                "partial_stats": "*fp32",
                "output": "*bf16",
                "query_start_loc": "*i32:4",
                "seq_lens": "*i32:4",
                "num_reqs": "i32",
                "least_query_len": "i32",
                "most_query_len": "i32",
                "max_splits": "i32",
                "window": "i32",
                "value_scale": "fp32",
            },
            constants={
                **row.constants,
                "HEAD_DIM": 128,
                "NUM_HEADS": 32,
                "BLOCK_DIM": 128,
                "SPLIT_LEN": 512,
                "IS_SEARCHED": has_window,
                "HAS_WINDOW": has_window,
            },
            has_dot=False,
        )
        for has_window in (False, True)
    ]


def _case(row: LaunchRow, variant: _Variant) -> CompileCase:
    head_dim = row.at_most.get("head_dim", 256)
    cache = variant.dtype if variant.fp8 == NO_FP8 else "u8"
    kinds = dict.fromkeys(_TENSORS, f"*{variant.dtype}") | dict.fromkeys(("key_cache", "value_cache"), f"*{cache}")
    kind = {NO_FP8: cache, E4M3: "e4m3", E5M2: "e5m2"}[variant.fp8]
    details = [name for name, value in variant._asdict().items() if value is True]
    return CompileCase(
        label=", ".join([variant.dtype, f"{kind} cache", f"head_dim {head_dim}", *details]),
        function=attention_kernel,
        signature=kinds
        | dict.fromkeys(("partial_sums", "partial_stats"), "*fp32")
        | dict.fromkeys(("block_tables", "query_start_loc", "seq_lens"), "*i32:4")
        | dict.fromkeys(_COUNTS, "i32")
        | dict.fromkeys(_STRIDES, "i32:16")
        | dict.fromkeys(_FLOATS, "fp32"),
        constants=_constants(row, variant, head_dim),
        has_dot=variant.dtype != "fp32",
        least_capability=89 if variant.widens_e4m3 else 0,
        least_shared_kib=_least_shared_kib(row),
    )


def _constants(row: LaunchRow, variant: _Variant, head_dim: int) -> Mapping[str, Any]:  # some are Triton's dtypes
    sizes = attention_constants(
        row,
        head_dim=head_dim,
        num_kv_heads=8,
        group=4,
        block_size=16,
        fp8=variant.fp8,
        widens_e4m3=variant.widens_e4m3,
    )
    return {
        **sizes,
        "DOT_DTYPE": {"bf16": tl.bfloat16, "fp16": tl.float16, "fp32": tl.float32}[variant.dtype],
        "IS_SEARCHED": variant.is_searched,
        "IS_SHARED": variant.is_shared,
        "HAS_WINDOW": variant.has_window,
        "HAS_SOFT_CAP": variant.has_soft_cap,
    }


def _dtype(row: LaunchRow) -> str:
    return "bf16" if _is_for_16_bits(row) else "fp32"


def _is_for_16_bits(row: LaunchRow) -> bool:
    """Say whether a row is for activations of 16 bits; models have soft caps and windows with heads of any size."""
    return "element_bytes" in row.at_most


def _is_for_128_channels(row: LaunchRow) -> bool:
    """Say whether a row is for the heads that most models have: those are compiled in more variants."""
    return "head_dim" in row.at_most


def _least_shared_kib(row: LaunchRow) -> int:
    """Return the least shared memory of a device that takes a row: more than what a row before it is for."""
    before = ROWS[: ROWS.index(row)]
    bounds = [other.at_most["shared_kib"] for other in before if _shape(other) == _shape(row)]
    return max(bounds, default=-1) + 1


def _shape(row: LaunchRow) -> tuple[str, dict[str, int]]:
    return row.kernel, {name: most for name, most in row.at_most.items() if name != "shared_kib"}
