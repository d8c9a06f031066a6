"""Rotary position embedding of query and key heads, in float32; channel i pairs with channel i + rotary_dim / 2.

Source: RoFormer, Su et al. 2021 (arXiv 2104.09864).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..layouts import RotaryTable
from .launches.elementwise import ROTARY
from .launches.row import CompileCase, LaunchRow, pick


@triton.jit
def _rotate_heads(
    heads: tl.tensor,
    out: tl.tensor,
    token: tl.tensor,
    first_head: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
) -> None:
    """Rotate some heads of a token; the channels that don't rotate are copied."""
    head = first_head + tl.arange(0, BLOCK_HEADS)
    pair = tl.arange(0, BLOCK_HALF)
    is_head = (head < NUM_HEADS)[:, None]
    mask = is_head & (pair < HALF)[None, :]
    source = heads + token * token_stride + head[:, None] * head_stride
    target = out + token * (NUM_HEADS * HEAD_DIM) + head[:, None] * HEAD_DIM
    first = tl.load(source + pair[None, :], mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + pair[None, :], mask=mask, other=0.0).to(tl.float32)
    rotated_first = first * cos[None, :] - second * sin[None, :]
    rotated_second = second * cos[None, :] + first * sin[None, :]
    tl.store(target + pair[None, :], rotated_first.to(out.dtype.element_ty), mask=mask)
    tl.store(target + HALF + pair[None, :], rotated_second.to(out.dtype.element_ty), mask=mask)
    if HEAD_DIM > 2 * HALF:
        rest = 2 * HALF + tl.arange(0, BLOCK_REST)
        is_rest = is_head & (rest < HEAD_DIM)[None, :]
        tl.store(target + rest[None, :], tl.load(source + rest[None, :], mask=is_rest), mask=is_rest)


@triton.jit(do_not_specialize_on_alignment=["positions"])
def rotary_kernel(
    query: tl.tensor,
    key: tl.tensor,
    query_out: tl.tensor,
    key_out: tl.tensor,
    positions: tl.tensor,
    cos_table: tl.tensor,
    sin_table: tl.tensor,
    query_token_stride: tl.tensor,
    query_head_stride: tl.tensor,
    key_token_stride: tl.tensor,
    key_head_stride: tl.tensor,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
) -> None:
    """Rotate BLOCK_HEADS heads of one token: the query's first, then the key's."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    pair = tl.arange(0, BLOCK_HALF)
    place = tl.load(positions + token) * HALF + pair
    cos = tl.load(cos_table + place, mask=pair < HALF, other=0.0)
    sin = tl.load(sin_table + place, mask=pair < HALF, other=0.0)
    num_query_blocks = tl.cdiv(NUM_HEADS, BLOCK_HEADS)
    if block < num_query_blocks:
        _rotate_heads(
            query, query_out, token, block * BLOCK_HEADS, query_token_stride, query_head_stride, cos, sin,
            NUM_HEADS, HEAD_DIM, HALF, BLOCK_HALF, BLOCK_REST, BLOCK_HEADS,
        )  # fmt: skip
    else:
        first_head = (block - num_query_blocks) * BLOCK_HEADS
        _rotate_heads(
            key, key_out, token, first_head, key_token_stride, key_head_stride, cos, sin,
            NUM_KV_HEADS, HEAD_DIM, HALF, BLOCK_HALF, BLOCK_REST, BLOCK_HEADS,
        )  # fmt: skip


def rotary(query: Tensor, key: Tensor, positions: Tensor, table: RotaryTable) -> tuple[Tensor, Tensor]:
    """Rotate query and key heads by their positions; see `Ops.rotary`.

    Args:
        query: [num_tokens, num_heads, head_dim], float16, bfloat16 or float32; views of a fused projection are read
            where they are.
        key: [num_tokens, num_kv_heads, head_dim], query's dtype.
        positions: [num_tokens] int64.
        table: cosines and sines, contiguous.

    Returns:
        The rotated query and key, contiguous.
    """
    query, key = _with_contiguous_channels(query), _with_contiguous_channels(key)
    query_out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    key_out = torch.empty(key.shape, dtype=key.dtype, device=key.device)
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[1]
    row = pick(ROTARY)
    block_heads = row.constants["BLOCK_HEADS"]
    grid = (num_tokens, triton.cdiv(num_heads, block_heads) + triton.cdiv(num_kv_heads, block_heads))
    if num_tokens > 0:
        rotary_kernel[grid](
            query,
            key,
            query_out,
            key_out,
            positions,
            table.cos,
            table.sin,
            query.stride(0),
            query.stride(1),
            key.stride(0),
            key.stride(1),
            **_constants(row, num_heads, num_kv_heads, head_dim, table.rotary_dim),
            num_warps=row.num_warps,
            num_stages=row.num_stages,
        )
    return query_out, key_out


def _with_contiguous_channels(heads: Tensor) -> Tensor:
    return heads if heads.stride(2) == 1 else heads.contiguous()


def _constants(row: LaunchRow, num_heads: int, num_kv_heads: int, head_dim: int, rotary_dim: int) -> dict[str, int]:
    half = rotary_dim // 2
    return {
        **row.constants,
        "NUM_HEADS": num_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "HALF": half,
        "BLOCK_HALF": triton.next_power_of_2(half),
        "BLOCK_REST": triton.next_power_of_2(max(1, head_dim - rotary_dim)),
    }


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: whole heads of 128 in each dtype, and heads that rotate in part."""
    pointers, strides = ("query", "key", "query_out", "key_out"), ("query_token", "query_head", "key_token", "key_head")
    return [
        CompileCase(
            label=f"{dtype}, {rotary_dim} of {head_dim} channels",
            function=rotary_kernel,
            signature=dict.fromkeys(pointers, f"*{dtype}")
            | {"positions": "*i64", "cos_table": "*fp32", "sin_table": "*fp32"}
            | {f"{name}_stride": "i32:16" for name in strides},
            constants=_constants(row, 32, 8, head_dim, rotary_dim),
            has_dot=False,
        )
        for dtype, head_dim, rotary_dim in (("bf16", 128, 128), ("fp16", 80, 32), ("fp32", 64, 64))
    ]
