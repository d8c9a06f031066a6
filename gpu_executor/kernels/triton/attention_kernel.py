"""The kernel of attention, and the one that merges what its programs left when they shared a tile's splits.

Decode rows and prefill chunks run through the same code: they differ in the size of tiles and splits, and in how a
program finds its tile. `attention_tile` has what happens within a split.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .attention_tile import attend_span, find_request, merge


@triton.jit
def _finish(sums: tl.tensor, weight: tl.tensor, value_scale: tl.tensor) -> tl.tensor:
    """Return the weighted means; a row without keys gives zeros, and one with NaN gives NaN."""
    return sums * (value_scale / tl.where(weight == 0.0, 1.0, weight))[:, None]


@triton.jit(
    do_not_specialize=[
        "num_reqs",
        "tiles_per_request",
        "least_query_len",
        "most_query_len",
        "num_slots",
        "max_splits",
        "table_stride",
        "window",
    ],
    do_not_specialize_on_alignment=["block_tables", "query_start_loc", "seq_lens"],
)
def attention_kernel(
    query: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    output: tl.tensor,
    partial_sums: tl.tensor,
    partial_stats: tl.tensor,
    block_tables: tl.tensor,
    query_start_loc: tl.tensor,
    seq_lens: tl.tensor,
    num_reqs: tl.tensor,
    tiles_per_request: tl.tensor,
    least_query_len: tl.tensor,
    most_query_len: tl.tensor,
    num_slots: tl.tensor,
    max_splits: tl.tensor,
    table_stride: tl.tensor,
    window: tl.tensor,
    query_token_stride: tl.tensor,
    query_head_stride: tl.tensor,
    logit_factor: tl.tensor,
    soft_cap: tl.tensor,
    value_scale: tl.tensor,
    HEAD_DIM: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    SPLIT_LEN: tl.constexpr,
    PARTS_MASK: tl.constexpr,
    KV_FORMAT: tl.constexpr,
    HARDWARE_FP8: tl.constexpr,
    DOT_DTYPE: tl.constexpr,
    IS_SEARCHED: tl.constexpr,
    IS_SHARED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
) -> None:
    """Attend a tile of query rows over their keys: all of its splits, or one slot's share.

    A row is a pair of a token and one of the GROUP query heads that read a KV head; a tile holds the rows of
    BLOCK_ROWS // GROUP tokens. Programs: (tiles, NUM_KV_HEADS, num_slots).

    Args:
        query: [num_tokens, num_heads, HEAD_DIM], channels contiguous.
        key_cache: [num_blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM], 8-bit floats as uint8.
        value_cache: like `key_cache`.
        output: [num_tokens, num_heads, HEAD_DIM], contiguous; not touched if IS_SHARED.
        partial_sums: [rows of partial results, num_heads, max_splits, BLOCK_DIM] float32, if IS_SHARED: each split's
            weighted sums. Splits are counted from the first one that a row sees.
        partial_stats: [rows of partial results, num_heads, max_splits, 2] float32: weight and peak.
        block_tables: [num_reqs, table_stride] int32.
        query_start_loc: [num_reqs + 1] int32.
        seq_lens: [num_reqs] int32.
        num_reqs: requests, padding included.
        tiles_per_request: tiles that each request has room for, unless IS_SEARCHED.
        least_query_len: a request with fewer tokens than that in this step is another launch's.
        most_query_len: so is one with more; unless IS_SEARCHED, also the rows of partial results that a request has.
        num_slots: programs that share the splits of a tile.
        max_splits: the most splits that a row sees.
        table_stride: numbers from one block table to the next.
        window: keys that a token sees, its own included, if HAS_WINDOW.
        query_token_stride: numbers from one token's queries to the next one's.
        query_head_stride: numbers from one head's query to the next one's.
        logit_factor: see `attend_span`.
        soft_cap: see `attend_span`.
        value_scale: what cached values are multiplied by.
        HEAD_DIM: channels of a head; BLOCK_DIM is the power of two that they lie in.
        NUM_KV_HEADS: KV heads of a block.
        GROUP: query heads that read one KV head.
        BLOCK_SIZE: tokens of a block.
        BLOCK_DIM: see HEAD_DIM.
        BLOCK_ROWS: rows of a tile.
        BLOCK_KEYS: keys of a step.
        SPLIT_LEN: keys of a split, a multiple of BLOCK_KEYS; 0: all of them are one.
        PARTS_MASK: see `attend_span`.
        KV_FORMAT: see `from_fp8`.
        HARDWARE_FP8: see `from_fp8`.
        DOT_DTYPE: what products are computed in; they are summed in float32.
        IS_SEARCHED: requests have different numbers of tiles: a program looks up whose tile it has.
        IS_SHARED: num_slots programs take turns with a tile's splits; `combine_kernel` comes after.
        HAS_WINDOW: whether tokens see only a window of keys.
        HAS_SOFT_CAP: whether logits are bounded.
    """
    tokens_per_tile: tl.constexpr = BLOCK_ROWS // GROUP
    kv_head = tl.program_id(1)
    if IS_SEARCHED:
        # The last tiles of a request have the most keys: they start first, so that no long one is left at the end.
        number = tl.num_programs(0) - 1 - tl.program_id(0)
        request = find_request(query_start_loc, num_reqs, number, tokens_per_tile)
        tile = number - tl.load(query_start_loc + request) // tokens_per_tile - request
    else:
        request = tl.program_id(0) // tiles_per_request
        tile = tl.program_id(0) % tiles_per_request
    first_token = tl.load(query_start_loc + request)
    query_len = tl.load(query_start_loc + request + 1) - first_token
    tile_token = tile * tokens_per_tile
    if (query_len < least_query_len) | (query_len > most_query_len) | (tile_token >= query_len):
        return
    seq_len = tl.load(seq_lens + request)
    first_position = seq_len - query_len + tile_token

    rows = tl.arange(0, BLOCK_ROWS)
    token = tile_token + rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    is_row = (rows < tokens_per_tile * GROUP) & (token < query_len)
    positions = first_position + rows // GROUP
    channels = tl.arange(0, BLOCK_DIM)
    mask = is_row[:, None] & (channels < HEAD_DIM)[None, :]
    query_places = (first_token + token).to(tl.int64) * query_token_stride + head * query_head_stride
    queries = tl.load(query + query_places[:, None] + channels[None, :], mask=mask, other=0.0).to(DOT_DTYPE)

    num_keys = tl.minimum(first_position + tokens_per_tile, seq_len)
    first_key = seq_len * 0
    if HAS_WINDOW:
        first_key = tl.maximum(first_position - window + 1, 0)
    block_stride: tl.constexpr = NUM_KV_HEADS * BLOCK_SIZE * HEAD_DIM
    key_cache += kv_head * (BLOCK_SIZE * HEAD_DIM)
    value_cache += kv_head * (BLOCK_SIZE * HEAD_DIM)
    block_table = block_tables + request.to(tl.int64) * table_stride

    total_sums = tl.zeros([BLOCK_ROWS, BLOCK_DIM], dtype=tl.float32)
    total_weight = tl.zeros([BLOCK_ROWS], dtype=tl.float32)
    total_peak = tl.full([BLOCK_ROWS], float("-inf"), dtype=tl.float32)
    if SPLIT_LEN == 0:
        total_sums, total_weight, total_peak = attend_span(
            queries,
            key_cache,
            value_cache,
            block_table,
            first_key // BLOCK_KEYS * BLOCK_KEYS,
            num_keys,
            num_keys,
            first_position,
            positions,
            window,
            logit_factor,
            soft_cap,
            HEAD_DIM,
            BLOCK_SIZE,
            block_stride,
            BLOCK_KEYS,
            BLOCK_DIM,
            KV_FORMAT,
            HARDWARE_FP8,
            PARTS_MASK,
            HAS_WINDOW,
            HAS_SOFT_CAP,
        )
    else:
        first_split = first_key // SPLIT_LEN + tl.program_id(2)
        for split in range(first_split, tl.cdiv(num_keys, SPLIT_LEN), num_slots):
            start = tl.maximum(split * SPLIT_LEN, first_key // BLOCK_KEYS * BLOCK_KEYS)
            end = tl.minimum((split + 1) * SPLIT_LEN, num_keys)
            sums, weight, peak = attend_span(
                queries,
                key_cache,
                value_cache,
                block_table,
                start,
                end,
                num_keys,
                first_position,
                positions,
                window,
                logit_factor,
                soft_cap,
                HEAD_DIM,
                BLOCK_SIZE,
                block_stride,
                BLOCK_KEYS,
                BLOCK_DIM,
                KV_FORMAT,
                HARDWARE_FP8,
                PARTS_MASK,
                HAS_WINDOW,
                HAS_SOFT_CAP,
            )
            if IS_SHARED:
                row_split = split
                is_kept = is_row & (positions >= split * SPLIT_LEN)
                if HAS_WINDOW:
                    row_split = split - tl.maximum(positions - window + 1, 0) // SPLIT_LEN
                    is_kept = is_kept & (row_split >= 0)
                partial_token = first_token + token
                if not IS_SEARCHED:
                    partial_token = request * most_query_len + token
                place = (partial_token.to(tl.int64) * (NUM_KV_HEADS * GROUP) + head) * max_splits + row_split
                places = place[:, None] * BLOCK_DIM + channels[None, :]
                tl.store(partial_sums + places, sums, mask=is_kept[:, None])
                tl.store(partial_stats + place * 2, weight, mask=is_kept)
                tl.store(partial_stats + place * 2 + 1, peak, mask=is_kept)
            else:
                total_sums, total_weight, total_peak = merge(total_sums, total_weight, total_peak, sums, weight, peak)
    if not IS_SHARED:
        out = _finish(total_sums, total_weight, value_scale)
        places = ((first_token + token).to(tl.int64) * (NUM_KV_HEADS * GROUP) + head) * HEAD_DIM
        tl.store(output + places[:, None] + channels[None, :], out.to(output.dtype.element_ty), mask=mask)


@triton.jit
def _find_request_of_token(query_start_loc: tl.tensor, num_reqs: tl.tensor, token: tl.tensor) -> tl.tensor:
    """Return the last request that begins at or before a token: those without a token are passed over."""
    low = 0
    high = num_reqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start_loc + middle) <= token:
            low = middle
        else:
            high = middle
    return low


@triton.jit(
    do_not_specialize=["num_reqs", "least_query_len", "most_query_len", "max_splits", "window"],
    do_not_specialize_on_alignment=["query_start_loc", "seq_lens"],
)
def combine_kernel(
    partial_sums: tl.tensor,
    partial_stats: tl.tensor,
    output: tl.tensor,
    query_start_loc: tl.tensor,
    seq_lens: tl.tensor,
    num_reqs: tl.tensor,
    least_query_len: tl.tensor,
    most_query_len: tl.tensor,
    max_splits: tl.tensor,
    window: tl.tensor,
    value_scale: tl.tensor,
    HEAD_DIM: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    SPLIT_LEN: tl.constexpr,
    UNROLLED: tl.constexpr,
    IS_SEARCHED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
) -> None:
    """Merge the splits of one token and head in their order, as a program that had all of them does it.

    Programs: (tokens if IS_SEARCHED, else num_reqs * most_query_len; NUM_HEADS). The arguments are those of
    `attention_kernel`. UNROLLED splits are loaded at once, before the first of them is merged.
    """
    head = tl.program_id(1)
    if IS_SEARCHED:
        number = tl.program_id(0)
        request = _find_request_of_token(query_start_loc, num_reqs, number)
        token = number - tl.load(query_start_loc + request)
        partial_token = number
    else:
        request = tl.program_id(0) // most_query_len
        token = tl.program_id(0) % most_query_len
        partial_token = tl.program_id(0)
    first_token = tl.load(query_start_loc + request)
    query_len = tl.load(query_start_loc + request + 1) - first_token
    if (query_len < least_query_len) | (query_len > most_query_len) | (token >= query_len):
        return
    position = tl.load(seq_lens + request) - query_len + token
    num_splits = tl.cdiv(position + 1, SPLIT_LEN)
    if HAS_WINDOW:
        num_splits -= tl.maximum(position - window + 1, 0) // SPLIT_LEN
    channels = tl.arange(0, BLOCK_DIM)[None, :]
    row = tl.zeros([1], dtype=tl.int64)
    first_place = (partial_token.to(tl.int64) * NUM_HEADS + head) * max_splits + row
    total_sums = tl.zeros([1, BLOCK_DIM], dtype=tl.float32)
    total_weight = tl.zeros([1], dtype=tl.float32)
    total_peak = tl.full([1], float("-inf"), dtype=tl.float32)
    for first in range(0, num_splits, UNROLLED):
        for step in tl.static_range(UNROLLED):
            is_split = first + step + row < num_splits
            place = first_place + first + step
            weight = tl.load(partial_stats + place * 2, mask=is_split, other=0.0)
            peak = tl.load(partial_stats + place * 2 + 1, mask=is_split, other=float("-inf"))
            sums = tl.load(partial_sums + place[:, None] * BLOCK_DIM + channels, mask=is_split[:, None], other=0.0)
            total_sums, total_weight, total_peak = merge(total_sums, total_weight, total_peak, sums, weight, peak)
    out = _finish(total_sums, total_weight, value_scale)
    places = ((first_token + token).to(tl.int64) * NUM_HEADS + head) * HEAD_DIM + channels
    tl.store(output + places, out.to(output.dtype.element_ty), mask=channels < HEAD_DIM)
