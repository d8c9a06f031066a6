"""All launch choices of the Triton kernels, and what they compile to: one table for tests, tools and people."""

from __future__ import annotations

from collections.abc import Mapping

from . import (
    activation,
    attention_cases,
    bound_logits,
    copy_blocks,
    dense_matmul,
    dequantize,
    embedding,
    quantized_matmul,
    rms_norm,
    rotary,
    split_sum,
    store_kv,
)
from .launches import attention, elementwise, mixture, products, sampling
from .launches.row import CompileCases, LaunchRow
from .mixture import choose, combine, group, grouped_product
from .sampling import best_tokens, bounds, draw, nucleus, penalties, settle, token_logprobs, top_groups

TABLE: tuple[LaunchRow, ...] = (*attention.ROWS, *elementwise.ROWS, *products.ROWS, *mixture.ROWS, *sampling.ROWS)
"""Each kernel's rows, in the order in which they are tried."""

COMPILE_CASES: Mapping[str, CompileCases] = {
    "decode_attention": attention_cases.decode_cases,
    "short_chunk_attention": attention_cases.short_chunk_cases,
    "chunk_attention": attention_cases.chunk_cases,
    "combine_splits": attention_cases.combine_cases,
    "store_kv": store_kv.compile_cases,
    "copy_blocks": copy_blocks.compile_cases,
    "rms_norm": rms_norm.compile_cases,
    "rotary": rotary.compile_cases,
    "gate": activation.compile_cases,
    "embedding": embedding.compile_cases,
    "bound_logits": bound_logits.compile_cases,
    "quantized_matmul": quantized_matmul.compile_cases,
    "dense_matmul": dense_matmul.compile_cases,
    "split_sum": split_sum.compile_cases,
    "dequantize": dequantize.compile_cases,
    "choose_experts": choose.compile_cases,
    "group_pairs": group.compile_cases,
    "combine_experts": combine.compile_cases,
    "grouped_dense": grouped_product.dense_cases,
    "grouped_quantized": grouped_product.quantized_cases,
    "best_tokens": best_tokens.compile_cases,
    "settle": settle.compile_cases,
    "top_groups": top_groups.compile_cases,
    "bounds": bounds.compile_cases,
    "estimate": draw.estimate_cases,
    "choose": draw.choose_cases,
    "mass_before": nucleus.mass_before_cases,
    "redraw": nucleus.redraw_cases,
    "count_tokens": penalties.count_tokens_cases,
    "penalize": penalties.penalize_cases,
    "describe_chunks": token_logprobs.describe_chunks_cases,
    "describe_rows": token_logprobs.describe_rows_cases,
}
"""Kernel -> what a row of it stands for."""
