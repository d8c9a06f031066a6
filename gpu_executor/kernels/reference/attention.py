"""Paged attention: fixed tiles, keys in fixed steps, in float32.

Two passes over the scores rather than a running softmax: the maximum is exact in any order, and what follows is a sum
over key steps, in their order, of partial sums over `KEY_STEP` keys. Padded steps add zeros, which change no bit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kv_cache_spec import LayerKVCache
from .attention_plan import KEY_STEP, AttentionPlan, TileGroup, TileShape
from .reductions import fixed_order_sum

# Heads are padded with zero channels to a multiple of the one, and to at least the other: products of narrow or ragged
# matrices run through other loops, which don't treat all rows of a tile alike (seen with 6 channels, MKL).
_CHANNEL_MULTIPLE = 16
_MIN_CHANNELS = 32


def paged_attention(
    query: Tensor, kv_cache: LayerKVCache, plan: AttentionPlan, scale: float, soft_cap: float | None = None
) -> Tensor:
    """See `Ops.paged_attention`; `plan` is made of its metadata, window and head counts."""
    has_padding = sum(len(group.tokens) for group in plan.groups) < len(query)
    output = torch.zeros_like(query) if has_padding else torch.empty_like(query)
    scaled = query.float() * scale
    for group in plan.groups:
        output.index_copy_(0, group.tokens, _attend(scaled, kv_cache, plan.shape, group, soft_cap).to(query.dtype))
    return output


def _attend(
    query: Tensor, kv_cache: LayerKVCache, shape: TileShape, group: TileGroup, soft_cap: float | None
) -> Tensor:
    head_dim = query.shape[-1]
    steps = (group.num_tiles, shape.num_kv_heads, group.num_steps, shape.pairs)
    queries = _tile_queries(query, shape, group)
    keys = _gather(kv_cache.key, group, kv_cache.key_scale)
    values = _gather(kv_cache.value, group, kv_cache.value_scale)
    channels = max(_MIN_CHANNELS, -(-head_dim // _CHANNEL_MULTIPLE) * _CHANNEL_MULTIPLE)
    if channels != head_dim:
        queries, keys, values = (F.pad(part, (0, channels - head_dim)) for part in (queries, keys, values))
    queries = queries.unsqueeze(2).expand(*steps, channels).flatten(0, 2)
    scores = torch.bmm(queries, keys.transpose(1, 2)).view(*steps, KEY_STEP)
    if soft_cap is not None:
        scores = _bounded(scores, soft_cap)
    scores = scores.add_(group.mask)
    largest = scores.amax(dim=4).amax(dim=2)
    weights = scores.sub_(largest[:, :, None, :, None]).exp_()
    products = torch.bmm(weights.flatten(0, 2), values).view(*steps, channels)
    totals = fixed_order_sum(weights)
    product, total = products[:, :, 0], totals[:, :, 0]
    for step in range(1, group.num_steps):
        product = product + products[:, :, step]
        total = total + totals[:, :, step]
    return _untile(product[..., :head_dim] / total.unsqueeze(-1), shape, group)


def _bounded(scores: Tensor, soft_cap: float) -> Tensor:
    """Return soft_cap * tanh(scores / soft_cap), by tanh(x) = 1 - 2 / (1 + exp(2 x)).

    torch's tanh may give a number other bits where a vector loop ends, which other tiles of the step decide; torch.exp
    runs one path for all. In float64, as the difference leaves few bits of a small number.
    """
    exponentials = scores.double().mul_(2.0 / soft_cap).exp_()
    return (soft_cap - 2.0 * soft_cap / exponentials.add_(1.0)).float()


def _tile_queries(query: Tensor, shape: TileShape, group: TileGroup) -> Tensor:
    """[num_tokens, num_heads, head_dim] -> [num_tiles, num_kv_heads, pairs, head_dim], padding pairs zero."""
    head_dim, used_pairs = query.shape[-1], shape.tokens * shape.heads
    rows = query.index_select(0, group.query_rows)
    rows = rows.view(group.num_tiles, shape.tokens, shape.num_kv_heads, shape.heads, head_dim)
    tiled = rows.permute(0, 2, 1, 3, 4).reshape(group.num_tiles, shape.num_kv_heads, used_pairs, head_dim)
    return F.pad(tiled, (0, 0, 0, shape.pairs - used_pairs))


def _untile(tiled: Tensor, shape: TileShape, group: TileGroup) -> Tensor:
    """[num_tiles, num_kv_heads, pairs, head_dim] -> [num_group_tokens, num_heads, head_dim]."""
    head_dim = tiled.shape[-1]
    pairs = tiled[:, :, : shape.tokens * shape.heads]
    pairs = pairs.reshape(group.num_tiles, shape.num_kv_heads, shape.tokens, shape.heads, head_dim)
    rows = pairs.permute(0, 2, 1, 3, 4).reshape(-1, shape.num_kv_heads * shape.heads, head_dim)
    return rows.index_select(0, group.token_rows)


def _gather(cache: Tensor, group: TileGroup, scale: float) -> Tensor:
    """Read a group's keys or values as they are stored: [num_tiles * num_kv_heads * num_steps, KEY_STEP, head_dim]."""
    head_dim = cache.shape[-1]
    # An 8-bit dtype has no gather of its own.
    bits = cache.view(torch.uint8) if cache.element_size() == 1 else cache
    gathered = bits.view(-1, head_dim).index_select(0, group.key_rows).view(-1, KEY_STEP, head_dim)
    values = gathered.view(cache.dtype).float()
    return values if scale == 1.0 else values.mul_(scale)
