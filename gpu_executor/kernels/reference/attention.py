"""Paged attention: fixed tiles, keys in fixed steps, in float32.

Two passes over the scores rather than a running softmax: the maximum is exact in any order, and what follows is a sum
over key steps, in their order, of partial sums over `KEY_STEP` keys. Padded steps add zeros, which change no bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...kv_cache_spec import LayerKVCache
from .attention_plan import KEY_STEP, AttentionPlan, TileGroup
from .reductions import fixed_order_sum

# torch multiplies small batches of matrices by loops of its own that treat rows differently; padding narrow heads with
# zero channels keeps every product above that size.
_MIN_PRODUCT_CHANNELS = 32


def paged_attention(query: Tensor, kv_cache: LayerKVCache, plan: AttentionPlan, scale: float) -> Tensor:
    """See `Ops.paged_attention`; `plan` is made of its metadata, window and head counts."""
    output = torch.empty_like(query)
    scaled = query.float() * scale
    for group in plan.groups:
        output.index_copy_(0, group.tokens, _attend(scaled, kv_cache, plan, group).to(query.dtype))
    return output


def _attend(query: Tensor, kv_cache: LayerKVCache, plan: AttentionPlan, group: TileGroup) -> Tensor:
    num_heads, head_dim = query.shape[1:]
    num_tiles, num_kv_heads = group.key_blocks.shape[0], kv_cache.key.shape[1]
    shape = (num_tiles, num_kv_heads, group.num_steps, plan.tile_pairs)
    queries = _tile_queries(query, plan, group, num_kv_heads)
    keys, values = _gather(kv_cache.key, group), _gather(kv_cache.value, group)
    if head_dim < _MIN_PRODUCT_CHANNELS:
        keys = torch.nn.functional.pad(keys, (0, _MIN_PRODUCT_CHANNELS - head_dim))
        queries = torch.nn.functional.pad(queries, (0, _MIN_PRODUCT_CHANNELS - head_dim))
    queries = queries.unsqueeze(2).expand(*shape, queries.shape[-1]).flatten(0, 2)
    scores = torch.bmm(queries, keys.transpose(1, 2)).view(*shape, KEY_STEP)
    scores.masked_fill_(group.hidden, -torch.inf)
    largest = scores.amax(dim=4).amax(dim=2)
    weights = scores.sub_(largest[:, :, None, :, None]).exp_()
    products = torch.bmm(weights.flatten(0, 2), values).view(*shape, head_dim)
    totals = fixed_order_sum(weights)
    product, total = products[:, :, 0], totals[:, :, 0]
    for step in range(1, group.num_steps):
        product = product + products[:, :, step]
        total = total + totals[:, :, step]
    return _untile(product / total.unsqueeze(-1), plan, group, num_heads)


def _tile_queries(query: Tensor, plan: AttentionPlan, group: TileGroup, num_kv_heads: int) -> Tensor:
    """[num_tokens, num_heads, head_dim] -> [num_tiles, num_kv_heads, tile_pairs, head_dim], left-over pairs zero."""
    num_heads, head_dim = query.shape[1:]
    num_tiles, heads = group.key_blocks.shape[0], num_heads // num_kv_heads
    rows = query.index_select(0, group.query_rows)
    rows = rows.view(num_tiles, plan.tile_tokens, num_kv_heads, heads, head_dim)
    tiled = rows.permute(0, 2, 1, 3, 4).reshape(num_tiles, num_kv_heads, plan.tile_tokens * heads, head_dim)
    return torch.nn.functional.pad(tiled, (0, 0, 0, plan.tile_pairs - plan.tile_tokens * heads))


def _untile(tiled: Tensor, plan: AttentionPlan, group: TileGroup, num_heads: int) -> Tensor:
    """[num_tiles, num_kv_heads, tile_pairs, head_dim] -> [num_group_tokens, num_heads, head_dim]."""
    num_tiles, num_kv_heads, _, head_dim = tiled.shape
    heads = num_heads // num_kv_heads
    pairs = tiled[:, :, : plan.tile_tokens * heads].unflatten(2, (plan.tile_tokens, heads))
    rows = pairs.permute(0, 2, 1, 3, 4).reshape(num_tiles * plan.tile_tokens, num_heads, head_dim)
    return rows.index_select(0, group.token_rows)


def _gather(cache: Tensor, group: TileGroup) -> Tensor:
    """Read a group's keys or values as they are stored: [num_tiles * num_kv_heads * num_steps, KEY_STEP, head_dim]."""
    num_blocks, num_kv_heads, block_size, head_dim = cache.shape
    heads = torch.arange(num_kv_heads, device=cache.device).view(1, num_kv_heads, 1)
    rows = (group.key_blocks.unsqueeze(1) * num_kv_heads + heads) * block_size + group.key_offsets.unsqueeze(1)
    gathered = cache.view(num_blocks * num_kv_heads * block_size, head_dim).index_select(0, rows.flatten())
    return gathered.view(-1, KEY_STEP, head_dim).float()
