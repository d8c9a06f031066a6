"""Paged attention: decode rows and prefill chunks of one step, each in the way that suits it.

A request attends in one of three ways, by how many tokens it has in the step, and by nothing else: what others do in
the step changes no bit of it.

- decode, up to 8 tokens (a draft's, too): bound by reading the cache. The least tile, and splits of the keys that
  several programs take turns with when there are few requests.
- a short chunk, up to 256 tokens (a follow-up question over a long cached prefix): larger tiles, splits as well.
- a chunk: bound by matrix products. The largest tiles, all keys in one go: there are programs enough without splits.

With batch invariance all requests attend like short chunks: a token's bits then don't depend on how its request was cut
into steps either.

How many programs share a tile's splits (`share_splits`) depends on the step, the results don't.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor

from ...batch.forward_metadata import ForwardMetadata
from ...kv_cache_spec import LayerKVCache
from .attention_kernel import attention_kernel, combine_kernel
from .attention_passes import (
    AttentionCall,
    AttentionPass,
    attention_device,
    list_passes,
    most_splits,
    part_of_pass,
    plan_sharing,
    rows_of_tile,
)
from .dot_dtype import dot_dtype
from .fp8 import E4M3, NO_FP8, as_bits, fp8_format
from .launches.attention import COMBINE_SPLITS
from .launches.row import LaunchRow, pick
from .split_sharing import Sharing

_LOG2_E = math.log2(math.e)


def paged_attention(
    query: Tensor,
    kv_cache: LayerKVCache,
    metadata: ForwardMetadata,
    *,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None = None,
    is_batch_invariant: bool = False,
) -> Tensor:
    """Attend each scheduled token over its request's paged KV cache; see `Ops.paged_attention`.

    Args:
        query: [num_tokens, num_heads, head_dim], float16, bfloat16 or float32, any strides.
        kv_cache: [num_blocks, num_kv_heads, block_size, head_dim], contiguous, any float dtype.
        metadata: block_tables, query_start_loc, seq_lens, block_size; max_query_len and max_seq_len size the launches.
        scale: logit multiplier, not negative.
        sliding_window: keys a token sees, its own included; None: all before it.
        soft_cap: bound of the scaled logits; None: unbounded.
        is_batch_invariant: a token's bits do not depend on how its request is cut into steps.

    Returns:
        [num_tokens, num_heads, head_dim], query's dtype, contiguous; zeros for requests of seq_len 0.

    Raises:
        ValueError: a shape, dtype or number is not as above.
    """
    _check(query, kv_cache, metadata, scale, soft_cap)
    if query.stride(2) != 1:
        query = query.contiguous()
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    factor = scale * kv_cache.key_scale * _LOG2_E
    call = AttentionCall(
        query=query,
        kv_cache=kv_cache,
        metadata=metadata,
        output=output,
        window=sliding_window,
        logit_factor=factor if soft_cap is None else 2 * factor / soft_cap,
        soft_cap=soft_cap,
        device=attention_device(query.device),
    )
    if query.shape[0]:
        for launch in list_passes(call, is_batch_invariant=is_batch_invariant):
            _launch(call, launch)
    return output


def _check(
    query: Tensor, kv_cache: LayerKVCache, metadata: ForwardMetadata, scale: float, soft_cap: float | None
) -> None:
    num_heads, head_dim = query.shape[1:]
    num_kv_heads = kv_cache.key.shape[1]
    shape = (kv_cache.key.shape[0], num_kv_heads, metadata.block_size, head_dim)
    for name, cache in (("keys", kv_cache.key), ("values", kv_cache.value)):
        if cache.shape != shape or not cache.is_contiguous():
            raise ValueError(f"cached {name} are {tuple(cache.shape)}, not contiguous {shape}")
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads don't share {num_kv_heads} KV heads evenly")
    if scale < 0 or (soft_cap is not None and soft_cap <= 0):
        raise ValueError(f"scale {scale} must not be negative, and soft cap {soft_cap} positive")


def _launch(call: AttentionCall, launch: AttentionPass) -> None:
    constants = attention_constants(
        launch.row,
        head_dim=call.query.shape[2],
        num_kv_heads=call.kv_cache.key.shape[1],
        group=call.group,
        block_size=call.metadata.block_size,
        fp8=fp8_format(call.kv_cache.key.dtype),
        widens_e4m3=call.device.widens_e4m3,
    )
    num_reqs = call.metadata.seq_lens.shape[0]
    max_splits, sharing = 1, Sharing(1, num_reqs)
    if constants["SPLIT_LEN"]:
        max_splits = most_splits(call.metadata.max_seq_len, call.window, constants["SPLIT_LEN"])
        sharing = plan_sharing(call, launch, max_splits, constants)
    for first in range(0, num_reqs, sharing.requests_at_once):
        part_call, part = call, launch
        if sharing.requests_at_once < num_reqs:
            part_call, part = part_of_pass(call, launch, first, min(first + sharing.requests_at_once, num_reqs))
        _launch_part(part_call, part, sharing.num_slots, max_splits, constants)


def _launch_part(
    call: AttentionCall, launch: AttentionPass, num_slots: int, max_splits: int, constants: dict[str, int]
) -> None:
    metadata, is_shared = call.metadata, num_slots > 1
    num_heads, num_kv_heads = call.query.shape[1], call.kv_cache.key.shape[1]
    partial_sums = partial_stats = call.output
    if is_shared:
        partial = (launch.num_rows, num_heads, max_splits)
        partial_sums = torch.empty((*partial, constants["BLOCK_DIM"]), dtype=torch.float32, device=call.query.device)
        partial_stats = torch.empty((*partial, 2), dtype=torch.float32, device=call.query.device)
    attention_kernel[(launch.num_tiles, num_kv_heads, num_slots)](
        call.query,
        as_bits(call.kv_cache.key),
        as_bits(call.kv_cache.value),
        call.output,
        partial_sums,
        partial_stats,
        metadata.block_tables,
        metadata.query_start_loc,
        metadata.seq_lens,
        metadata.seq_lens.shape[0],
        launch.tiles_per_request,
        launch.least,
        launch.most,
        num_slots,
        max_splits,
        metadata.block_tables.stride(0),
        call.window or 0,
        call.query.stride(0),
        call.query.stride(1),
        call.logit_factor,
        (call.soft_cap or 0.0) * _LOG2_E,
        call.kv_cache.value_scale,
        **constants,
        DOT_DTYPE=_dot_dtype(call.query.dtype, call.kv_cache.key.dtype),
        IS_SEARCHED=launch.is_searched,
        IS_SHARED=is_shared,
        HAS_WINDOW=call.window is not None,
        HAS_SOFT_CAP=call.soft_cap is not None,
        num_warps=launch.row.num_warps,
        num_stages=launch.row.num_stages,
    )
    if is_shared:
        _combine(call, launch, partial_sums, partial_stats, constants)


def _combine(
    call: AttentionCall, launch: AttentionPass, partial_sums: Tensor, partial_stats: Tensor, constants: dict[str, int]
) -> None:
    metadata = call.metadata
    num_heads, max_splits, block_dim = partial_sums.shape[1:]
    row = pick(COMBINE_SPLITS)
    combine_kernel[(launch.num_rows, num_heads)](
        partial_sums,
        partial_stats,
        call.output,
        metadata.query_start_loc,
        metadata.seq_lens,
        metadata.seq_lens.shape[0],
        launch.least,
        launch.most,
        max_splits,
        call.window or 0,
        call.kv_cache.value_scale,
        **row.constants,
        HEAD_DIM=call.query.shape[2],
        NUM_HEADS=num_heads,
        BLOCK_DIM=block_dim,
        SPLIT_LEN=constants["SPLIT_LEN"],
        IS_SEARCHED=launch.is_searched,
        HAS_WINDOW=call.window is not None,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )


def attention_constants(
    row: LaunchRow, *, head_dim: int, num_kv_heads: int, group: int, block_size: int, fp8: int, widens_e4m3: bool
) -> dict[str, int]:
    """Return the constants of `attention_kernel` that follow from a row and a model.

    Args:
        row: launch choices.
        head_dim: channels of a head.
        num_kv_heads: KV heads of a block.
        group: query heads that read one KV head.
        block_size: tokens of a block.
        fp8: format of cached numbers (`fp8_format`).
        widens_e4m3: whether the device has an instruction for that.
    """
    return {
        **row.constants,
        "BLOCK_ROWS": rows_of_tile(row, group),
        "HEAD_DIM": head_dim,
        "NUM_KV_HEADS": num_kv_heads,
        "GROUP": group,
        "BLOCK_SIZE": block_size,
        "BLOCK_DIM": max(16, triton.next_power_of_2(head_dim)),
        "KV_FORMAT": fp8,
        "HARDWARE_FP8": fp8 == E4M3 and widens_e4m3,
    }


def _dot_dtype(query: torch.dtype, cache: torch.dtype) -> Any:  # a dtype of Triton's, which is untyped
    """Return what products are computed in: the activations' dtype, unless the cache has one that it does not hold."""
    return dot_dtype(query if cache == query or fp8_format(cache) != NO_FP8 else torch.float32)
