"""All launch choices of the Triton kernels, and what they compile to: one table for tests, tools and people."""

from __future__ import annotations

from collections.abc import Mapping

from . import attention_cases, copy_blocks, rms_norm, rotary, silu_and_mul, store_kv
from .launches import attention, elementwise
from .launches.row import CompileCases, LaunchRow

TABLE: tuple[LaunchRow, ...] = (*attention.ROWS, *elementwise.RMS_NORM, *elementwise.ROTARY, *elementwise.SILU_AND_MUL)
"""Each kernel's rows, in the order in which they are tried."""

COMPILE_CASES: Mapping[str, CompileCases] = {
    "decode_attention": attention_cases.decode_cases,
    "short_chunk_attention": attention_cases.chunk_cases,
    "chunk_attention": attention_cases.chunk_cases,
    "combine_splits": attention_cases.combine_cases,
    "store_kv": store_kv.compile_cases,
    "copy_blocks": copy_blocks.compile_cases,
    "rms_norm": rms_norm.compile_cases,
    "rotary": rotary.compile_cases,
    "silu_and_mul": silu_and_mul.compile_cases,
}
"""Kernel -> what a row of it stands for."""
