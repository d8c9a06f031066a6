"""Launch choices of attention and of the kernels that move keys and values.

`paged_attention` has the three ways to attend. The numbers that it picks by are head_dim, element_bytes (of the
activations), kv_bytes (of a cached number) and shared_kib, the shared memory that one program can have: 227 on an H100,
163 on an A100, 99 on an L40S, 64 on an MI300. SPLIT_LEN is part of what a result is: rows for the same model and device
must not differ in it.
"""

from __future__ import annotations

from .row import LaunchRow

MAX_DECODE_TOKENS = 8
"""Most tokens of a request in one step that attend as a decode does: the last token, and drafts after it."""

MAX_SHORT_CHUNK_TOKENS = 256
"""Most tokens of a request in one step that attend as a short chunk does: some 16 tiles of a model with groups of 4,
too few to fill a device without sharing their splits."""

DECODE_ATTENTION = (
    LaunchRow(
        kernel="decode_attention",
        at_most={"element_bytes": 2, "kv_bytes": 1, "head_dim": 128, "shared_kib": 99},
        constants={"BLOCK_ROWS": 16, "BLOCK_KEYS": 32, "SPLIT_LEN": 512, "PARTS_MASK": 0},
        num_warps=4,
        num_stages=2,
        reason="As in the next row; with a third stage the compiler spills e5m2 on an L40S to fit a fourth program. One"
        " stage of 8 KiB in each of three programs is enough for its bandwidth.",
    ),
    LaunchRow(
        kernel="decode_attention",
        at_most={"element_bytes": 2, "kv_bytes": 1, "head_dim": 128},
        constants={"BLOCK_ROWS": 16, "BLOCK_KEYS": 32, "SPLIT_LEN": 512, "PARTS_MASK": 0},
        num_warps=4,
        num_stages=3,
        reason="8-bit caches: what a step widens lies in registers besides, and of 64 keys it spills. Two stages of"
        " 8 KiB under way in each of four programs are as many bytes as an H100 needs.",
    ),
    LaunchRow(
        kernel="decode_attention",
        at_most={"element_bytes": 2, "head_dim": 128, "shared_kib": 163},
        constants={"BLOCK_ROWS": 16, "BLOCK_KEYS": 32, "SPLIT_LEN": 512, "PARTS_MASK": 0},
        num_warps=4,
        num_stages=3,
        reason="As in the next row, with stages of 16 KiB: two programs fit the 99 KiB of an L40S. On an A100 four do,"
        " where 64 keys with a window or a soft cap spill.",
    ),
    LaunchRow(
        kernel="decode_attention",
        at_most={"element_bytes": 2, "head_dim": 128},
        constants={"BLOCK_ROWS": 16, "BLOCK_KEYS": 64, "SPLIT_LEN": 512, "PARTS_MASK": 0},
        num_warps=4,
        num_stages=3,
        reason="Bound by reading the cache: the least rows that matrix units take, and two stages of 32 KiB under way"
        " in each of the two or three programs of a multiprocessor (an H100 needs some 30 KiB on the way to be busy)."
        " Splits of 512 keys, 256 KiB: shorter ones make more work for the merge at 100,000 tokens, longer ones leave"
        " multiprocessors idle at 1 request of 1,000.",
    ),
    LaunchRow(
        kernel="decode_attention",
        at_most={"element_bytes": 2},
        constants={"BLOCK_ROWS": 16, "BLOCK_KEYS": 32, "SPLIT_LEN": 512, "PARTS_MASK": 0},
        num_warps=8,
        num_stages=2,
        reason="256 channels: 32 keys are 32 KiB, and one stage of them fits everywhere. Of 4 warps a soft cap beside a"
        " window spills on an H100, where the compiler makes room for a third program.",
    ),
    LaunchRow(
        kernel="decode_attention",
        at_most={},
        constants={"BLOCK_ROWS": 16, "BLOCK_KEYS": 16, "SPLIT_LEN": 512, "PARTS_MASK": 0},
        num_warps=8,
        num_stages=1,
        reason="float32 has no exact matrix instruction: its products are sums in registers, which small tiles spare.",
    ),
)

SHORT_CHUNK_ATTENTION = (
    LaunchRow(
        kernel="short_chunk_attention",
        at_most={"element_bytes": 2, "kv_bytes": 1, "head_dim": 128, "shared_kib": 99},
        constants={"BLOCK_ROWS": 64, "BLOCK_KEYS": 16, "SPLIT_LEN": 512, "PARTS_MASK": 0},
        num_warps=8,
        num_stages=2,
        reason="8-bit caches: what a step widens lies in registers besides, and of 32 keys it spills.",
    ),
    LaunchRow(
        kernel="short_chunk_attention",
        at_most={"element_bytes": 2, "head_dim": 128, "shared_kib": 99},
        constants={"BLOCK_ROWS": 64, "BLOCK_KEYS": 32, "SPLIT_LEN": 512, "PARTS_MASK": 0},
        num_warps=8,
        num_stages=2,
        reason="As in the next row, within 64 KiB.",
    ),
    LaunchRow(
        kernel="short_chunk_attention",
        at_most={"element_bytes": 2, "head_dim": 128},
        constants={"BLOCK_ROWS": 64, "BLOCK_KEYS": 64, "SPLIT_LEN": 512, "PARTS_MASK": 0},
        num_warps=8,
        num_stages=3,
        reason="64 rows are the least that an H100's wgmma takes. Two warp groups, because the sums of a split and"
        " those of the splits before it don't fit the registers of one.",
    ),
    LaunchRow(
        kernel="short_chunk_attention",
        at_most={"element_bytes": 2, "shared_kib": 64},
        constants={"BLOCK_ROWS": 32, "BLOCK_KEYS": 32, "SPLIT_LEN": 512, "PARTS_MASK": 0},
        num_warps=4,
        num_stages=2,
        reason="As in the next row; a wave of an MI300 has twice the registers if a program has 4 of them.",
    ),
    LaunchRow(
        kernel="short_chunk_attention",
        at_most={"element_bytes": 2},
        constants={"BLOCK_ROWS": 32, "BLOCK_KEYS": 32, "SPLIT_LEN": 512, "PARTS_MASK": 0},
        num_warps=8,
        num_stages=2,
        reason="256 channels: half the rows for twice the channels.",
    ),
    LaunchRow(
        kernel="short_chunk_attention",
        at_most={},
        constants={"BLOCK_ROWS": 16, "BLOCK_KEYS": 16, "SPLIT_LEN": 512, "PARTS_MASK": 0},
        num_warps=8,
        num_stages=2,
        reason="float32, as for decodes.",
    ),
)

CHUNK_ATTENTION = (
    LaunchRow(
        kernel="chunk_attention",
        at_most={"element_bytes": 2, "head_dim": 128, "shared_kib": 64},
        constants={"BLOCK_ROWS": 64, "BLOCK_KEYS": 32, "SPLIT_LEN": 0, "PARTS_MASK": 1},
        num_warps=4,
        num_stages=2,
        reason="Two programs in the 64 KiB of an MI300's compute unit.",
    ),
    LaunchRow(
        kernel="chunk_attention",
        at_most={"element_bytes": 2, "head_dim": 128, "shared_kib": 163},
        constants={"BLOCK_ROWS": 128, "BLOCK_KEYS": 32, "SPLIT_LEN": 0, "PARTS_MASK": 1},
        num_warps=8,
        num_stages=3,
        reason="As in the next row; 64 keys a step spill registers where weights don't go from registers to wgmma.",
    ),
    LaunchRow(
        kernel="chunk_attention",
        at_most={"element_bytes": 2, "head_dim": 128},
        constants={"BLOCK_ROWS": 128, "BLOCK_KEYS": 64, "SPLIT_LEN": 0, "PARTS_MASK": 1},
        num_warps=8,
        num_stages=3,
        reason="Bound by matrix products: two warp groups of 64 rows share the keys, which halves what is read from L2."
        " Keys that all rows see are taken without a mask, most of a long prompt's.",
    ),
    LaunchRow(
        kernel="chunk_attention",
        at_most={"element_bytes": 2, "shared_kib": 64},
        constants={"BLOCK_ROWS": 64, "BLOCK_KEYS": 32, "SPLIT_LEN": 0, "PARTS_MASK": 1},
        num_warps=4,
        num_stages=2,
        reason="As in the next row; a wave of an MI300 has twice the registers if a program has 4 of them.",
    ),
    LaunchRow(
        kernel="chunk_attention",
        at_most={"element_bytes": 2},
        constants={"BLOCK_ROWS": 64, "BLOCK_KEYS": 32, "SPLIT_LEN": 0, "PARTS_MASK": 1},
        num_warps=8,
        num_stages=2,
        reason="256 channels: half the rows for twice the channels.",
    ),
    LaunchRow(
        kernel="chunk_attention",
        at_most={},
        constants={"BLOCK_ROWS": 16, "BLOCK_KEYS": 16, "SPLIT_LEN": 0, "PARTS_MASK": 0},
        num_warps=8,
        num_stages=2,
        reason="float32, as for decodes.",
    ),
)

COMBINE_SPLITS = (
    LaunchRow(
        kernel="combine_splits",
        at_most={},
        constants={"UNROLLED": 8},
        num_warps=1,
        num_stages=1,
        reason="A program is one token and head. Splits are added one after the other, so that only loads in advance"
        " hide how long memory takes.",
    ),
)

STORE_KV = (
    LaunchRow(
        kernel="store_kv",
        at_most={},
        constants={"ELEMENTS": 2048},
        num_warps=4,
        num_stages=1,
        reason="16 bytes a thread of 16-bit keys, and of values: 8 heads of 128 channels and less in one program.",
    ),
)

COPY_BLOCKS = (
    LaunchRow(
        kernel="copy_blocks",
        at_most={},
        constants={"BLOCK_WORDS": 1024},
        num_warps=4,
        num_stages=1,
        reason="8 KiB a program: a block of 16 tokens of 8 heads of 128 channels is four of them.",
    ),
)

ROWS: tuple[LaunchRow, ...] = (
    *DECODE_ATTENTION,
    *SHORT_CHUNK_ATTENTION,
    *CHUNK_ATTENTION,
    *COMBINE_SPLITS,
    *STORE_KV,
    *COPY_BLOCKS,
)
