"""What one program of attention does: a tile of queries of one request and KV head, over the request's paged keys.

The keys are cut at absolute multiples of SPLIT_LEN tokens, and each split has a softmax of its own: the largest logit,
the sum of the weights and the weighted sum of the values, in float32. Splits are then merged in their order. A row's
result so depends on its own request alone: what the tile's other rows, or programs that take turns with the splits, do
to it is to add exact zeros and to multiply by exactly one.

All of that is for finite values. A weight of zero does not silence a value that is NaN or infinite, and a tile reads
its last token's value for all of its rows: such a value gives NaN to tokens of the same tile before it, too, which
don't see it. They are of the same request; slots of others in the step are never read.

Logits are kept in units of log2(e), so that exp2 takes them. Every multiplication followed by an addition that two
kernels, or two branches of one, must round alike is written as one `fma`.

Source: FlashAttention-2, Dao 2023 (arXiv 2307.08691); Flash-Decoding, Dao et al. 2023, for the splits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .fp8 import NO_FP8, from_fp8

_NO_FP8 = tl.constexpr(NO_FP8)


@triton.jit
def find_request(query_start_loc: tl.tensor, num_reqs: tl.tensor, tile: tl.tensor, TOKENS: tl.constexpr) -> tl.tensor:
    """Return the request that a tile belongs to if request i's tiles begin at number query_start_loc[i] // TOKENS + i.

    Numbers between a request's last tile and the next one's first belong to nobody; the caller finds that its tokens
    lie beyond the request's. So the host can size the launch, num_tokens // TOKENS + num_reqs, without reading what is
    on the device.
    """
    low = 0
    high = num_reqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start_loc + middle) // TOKENS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def merge(
    total_sums: tl.tensor,
    total_weight: tl.tensor,
    total_peak: tl.tensor,
    sums: tl.tensor,
    weight: tl.tensor,
    peak: tl.tensor,
) -> tl.tensor:
    """Add a split to the splits before it; one without any key (peak -inf, zeros) changes nothing.

    Args:
        total_sums: [rows, channels] float32, weighted sums of values, relative to exp2(total_peak).
        total_weight: [rows] float32, sums of weights.
        total_peak: [rows] float32, the largest logit, -inf before the first key.
        sums: like `total_sums`, of the split.
        weight: like `total_weight`.
        peak: like `total_peak`.
    """
    new_peak = tl.maximum(total_peak, peak)
    reference = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    before = tl.exp2(total_peak - reference)
    share = tl.exp2(peak - reference)
    total_sums = tl.fma(sums, share[:, None], total_sums * before[:, None])
    total_weight = tl.fma(weight, share, total_weight * before)
    return total_sums, total_weight, new_peak


@triton.jit
def attend_span(
    query: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    block_table: tl.tensor,
    start: tl.tensor,
    end: tl.tensor,
    num_keys: tl.tensor,
    first_position: tl.tensor,
    positions: tl.tensor,
    window: tl.tensor,
    logit_factor: tl.tensor,
    soft_cap: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    KV_FORMAT: tl.constexpr,
    HARDWARE_FP8: tl.constexpr,
    PARTS_MASK: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
) -> tl.tensor:
    """Run the softmax of a tile's rows over the keys [start, end), BLOCK_KEYS at a time.

    Args:
        query: [rows, BLOCK_DIM], zeros from HEAD_DIM on, in the dtype that the products are computed in.
        key_cache: where the KV head's keys begin in block 0, 8-bit floats as uint8.
        value_cache: where its values begin.
        block_table: the request's row.
        start: a multiple of BLOCK_KEYS.
        end: a multiple of it, too, or `num_keys`.
        num_keys: keys that may be read: later slots, and block table entries, hold anything.
        first_position: of the tile's first row: no row sees fewer keys, but for the window.
        positions: [rows], of the rows' tokens.
        window: keys that a token sees, its own included.
        logit_factor: what a product of query and key is multiplied by, at least 0; with a soft cap, half the argument
            of the hyperbolic tangent, in units of log2(e).
        soft_cap: the cap, in units of log2(e).
        HEAD_DIM: channels of a head.
        BLOCK_SIZE: tokens of a block.
        BLOCK_STRIDE: numbers from a block to the next one.
        BLOCK_KEYS: keys of a step.
        BLOCK_DIM: the power of two that HEAD_DIM lies in.
        KV_FORMAT: see `from_fp8`.
        HARDWARE_FP8: see `from_fp8`.
        PARTS_MASK: 1 to take the keys that all rows see by themselves, without a mask: the same bits with less work.
        HAS_WINDOW: whether tokens see only a window of keys.
        HAS_SOFT_CAP: whether logits are bounded.

    Returns:
        The weighted sums of values [rows, BLOCK_DIM], the sums of weights and the largest logits [rows], all float32.
    """
    sums = tl.zeros([query.shape[0], BLOCK_DIM], dtype=tl.float32)
    weight = tl.zeros([query.shape[0]], dtype=tl.float32)
    peak = tl.full([query.shape[0]], float("-inf"), dtype=tl.float32)
    middle = start
    if PARTS_MASK and not HAS_WINDOW:
        middle = tl.minimum(tl.maximum((first_position + 1) // BLOCK_KEYS * BLOCK_KEYS, start), end)
    for part in tl.static_range(2):
        # Part 0: the keys that all rows see; part 1: the others.
        if part == 1 or (PARTS_MASK and not HAS_WINDOW):
            sums, weight, peak = _attend_keys(
                sums,
                weight,
                peak,
                query,
                key_cache,
                value_cache,
                block_table,
                middle if part == 1 else start,
                end if part == 1 else middle,
                num_keys,
                positions,
                window,
                logit_factor,
                soft_cap,
                HEAD_DIM,
                BLOCK_SIZE,
                BLOCK_STRIDE,
                BLOCK_KEYS,
                BLOCK_DIM,
                KV_FORMAT,
                HARDWARE_FP8,
                part == 1,
                HAS_WINDOW,
                HAS_SOFT_CAP,
            )
    return sums, weight, peak


@triton.jit
def _attend_keys(
    sums: tl.tensor,
    weight: tl.tensor,
    peak: tl.tensor,
    query: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    block_table: tl.tensor,
    start: tl.tensor,
    end: tl.tensor,
    num_keys: tl.tensor,
    positions: tl.tensor,
    window: tl.tensor,
    logit_factor: tl.tensor,
    soft_cap: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    KV_FORMAT: tl.constexpr,
    HARDWARE_FP8: tl.constexpr,
    IS_MASKED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
) -> tl.tensor:
    channels = tl.arange(0, BLOCK_DIM)
    is_channel = channels < HEAD_DIM
    # A block id is loaded one step before the keys that need it, so that no load waits for another one.
    keys = start + tl.arange(0, BLOCK_KEYS)
    next_ids = tl.load(block_table + keys // BLOCK_SIZE, mask=keys < num_keys, other=0)
    for first_key in tl.range(start, end, BLOCK_KEYS):
        keys = first_key + tl.arange(0, BLOCK_KEYS)
        is_stored = keys < num_keys
        mask = is_stored[:, None] & is_channel[None, :]
        places = next_ids.to(tl.int64) * BLOCK_STRIDE + (keys % BLOCK_SIZE) * HEAD_DIM
        places = places[:, None] + channels[None, :]
        next_keys = keys + BLOCK_KEYS
        next_ids = tl.load(block_table + next_keys // BLOCK_SIZE, mask=next_keys < num_keys, other=0)
        # Slots without a token may hold NaN: a weight of zero would not silence it, so they are read as zeros.
        if IS_MASKED or BLOCK_DIM != HEAD_DIM:
            key = tl.load(key_cache + places, mask=mask, other=0)
            value = tl.load(value_cache + places, mask=mask, other=0)
        else:
            key = tl.load(key_cache + places)
            value = tl.load(value_cache + places)
        if KV_FORMAT != _NO_FP8:
            key = from_fp8(key, KV_FORMAT, HARDWARE_FP8)
            value = from_fp8(value, KV_FORMAT, HARDWARE_FP8)
        logits = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision="ieee")
        factor = logit_factor
        if HAS_SOFT_CAP:
            # tanh(x) = 1 - 2 / (exp(2 x) + 1) holds at both ends: the exponential becomes infinity or zero.
            logits = soft_cap - 2.0 * soft_cap / (tl.exp2(logits * logit_factor) + 1.0)
            factor = 1.0
        seen = logits
        if IS_MASKED:
            is_seen = (keys[None, :] <= positions[:, None]) & is_stored[None, :]
            if HAS_WINDOW:
                is_seen = is_seen & (keys[None, :] > positions[:, None] - window)
            seen = tl.where(is_seen, logits, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(seen, axis=1) * factor)
        reference = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        exponents = tl.fma(logits, factor, -reference[:, None])
        if IS_MASKED:
            exponents = tl.where(is_seen, exponents, float("-inf"))
        weights = tl.exp2(exponents)
        before = tl.exp2(peak - reference)
        weight = tl.fma(weight, before, tl.sum(weights, axis=1))
        sums = tl.dot(weights.to(query.dtype), value.to(query.dtype), sums * before[:, None], input_precision="ieee")
        peak = new_peak
    return sums, weight, peak
