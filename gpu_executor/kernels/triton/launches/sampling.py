"""Launch choices of the kernels over rows of logits.

All of them read rows of float32 numbers, chunk by chunk, so that bytes set their time; those that make noise are bound
by integer operations. A row's result does not depend on any of these choices.
"""

from __future__ import annotations

from .row import LaunchRow

BEST_TOKENS = (
    LaunchRow(
        kernel="best_tokens",
        at_most={},
        constants={},
        num_warps=4,
        num_stages=1,
        reason="a chunk of 4,096 logits is 32 a thread, eight 16-byte loads in flight each",
    ),
)

SETTLE = (
    LaunchRow(
        kernel="settle",
        at_most={},
        constants={},
        num_warps=1,
        num_stages=1,
        reason="a row is a number a chunk: 32 for 128k tokens, one a thread of one warp",
    ),
)

TOP_GROUPS = (
    LaunchRow(
        kernel="top_groups",
        at_most={"groups": 4096},
        constants={},
        num_warps=8,
        num_stages=1,
        reason="128k tokens have 4,096 groups: 16 a thread stay in registers during the bisection",
    ),
    LaunchRow(
        kernel="top_groups",
        at_most={},
        constants={},
        num_warps=8,
        num_stages=1,
        reason="262k tokens have 8,192 groups, 32 a thread; 16 warps spill where warps have 64 threads",
    ),
)

BOUNDS = (
    LaunchRow(
        kernel="bounds",
        at_most={"top_k": 64},
        constants={"BLOCK_GROUPS": 64, "IS_ONE_TILE": True},
        num_warps=4,
        num_stages=1,
        reason="what people ask for: 64 groups are 2,048 tokens, 16 a thread in registers during the bisection",
    ),
    LaunchRow(
        kernel="bounds",
        at_most={},
        constants={"BLOCK_GROUPS": 128, "IS_ONE_TILE": False},
        num_warps=8,
        num_stages=1,
        reason="rare: each of some 25 bisection steps reads the groups again, from the cache of the processor",
    ),
)

ESTIMATE = (
    LaunchRow(
        kernel="estimate",
        at_most={},
        constants={"TILE": 1024},
        num_warps=4,
        num_stages=1,
        reason="8 tokens a thread are two runs of the generator: enough to hide its latency, few registers",
    ),
)

CHOOSE = (
    LaunchRow(
        kernel="choose",
        at_most={},
        constants={"TILE": 512},
        num_warps=4,
        num_stages=1,
        reason="float64 logarithms of 4 tokens a thread, for one tile or two of a row; those of 8 spill",
    ),
)

MASS_BEFORE = (
    LaunchRow(
        kernel="mass_before",
        at_most={},
        constants={},
        num_warps=16,
        num_stages=1,
        reason="8 logits a thread: their two 64-bit masses spill from 16 on",
    ),
)

REDRAW = (
    LaunchRow(
        kernel="redraw",
        at_most={},
        constants={"TILE": 2048},
        num_warps=16,
        num_stages=1,
        reason="one draw in 20 at top_p 0.95 gets here, alone on its processor: many warps hide its latency",
    ),
)

COUNT_TOKENS = (
    LaunchRow(
        kernel="count_tokens",
        at_most={},
        constants={"BLOCK": 512},
        num_warps=4,
        num_stages=1,
        reason="four atomic operations a thread in flight",
    ),
)

PENALIZE = (
    LaunchRow(
        kernel="penalize",
        at_most={},
        constants={"BLOCK": 512},
        num_warps=4,
        num_stages=1,
        reason="as count_tokens; each is followed by a scattered load and store",
    ),
)

DESCRIBE_CHUNKS = (
    LaunchRow(
        kernel="describe_chunks",
        at_most={},
        constants={},
        num_warps=8,
        num_stages=1,
        reason="16 logits a thread, whose 64-bit masses stay in registers",
    ),
)

DESCRIBE_ROWS = (
    LaunchRow(
        kernel="describe_rows",
        at_most={"top": 0},
        constants={"BLOCK_GROUPS": 0},
        num_warps=1,
        num_stages=1,
        reason="the token alone: a row is a number a chunk",
    ),
    LaunchRow(
        kernel="describe_rows",
        at_most={"top": 32},
        constants={"BLOCK_GROUPS": 32},
        num_warps=4,
        num_stages=1,
        reason="20 is the API's most: 32 groups are 1,024 tokens, whose largest is taken out one by one",
    ),
    LaunchRow(
        kernel="describe_rows",
        at_most={},
        constants={"BLOCK_GROUPS": 128},
        num_warps=8,
        num_stages=1,
        reason="the most that is worth it; whoever wants more gets the row sorted",
    ),
)

MAX_TOP = 128
"""Best tokens that `describe_rows` can take out of a row."""

ROWS: tuple[LaunchRow, ...] = (
    *BEST_TOKENS,
    *SETTLE,
    *TOP_GROUPS,
    *BOUNDS,
    *ESTIMATE,
    *CHOOSE,
    *MASS_BEFORE,
    *REDRAW,
    *COUNT_TOKENS,
    *PENALIZE,
    *DESCRIBE_CHUNKS,
    *DESCRIBE_ROWS,
)
