"""Launch choices of mixtures of experts.

Shape number: `pairs`, those of a token and an expert that an expert has on average. Under --batch-invariant every
product is launched as for `INVARIANT_PAIRS`, so that no choice depends on the batch.
"""

from __future__ import annotations

from .row import LaunchRow

INVARIANT_PAIRS = 64

PAIR_NUMBERS = 1 << 27
"""Numbers that the pairs of a launch hold between products: 256 MB of 16 bits, which for Mixtral 8x7B are 2,048 tokens,
enough to keep each of 8 experts busy with arithmetic. Unmeasured."""

CHOOSE_EXPERTS = (
    LaunchRow(
        kernel="choose_experts",
        at_most={},
        constants={},
        num_warps=1,
        num_stages=1,
        reason="128 experts are 4 numbers a thread of one warp, whose reductions need no shared memory",
    ),
)

GROUP_PAIRS = (
    LaunchRow(
        kernel="group_pairs",
        at_most={},
        constants={"BLOCK_SIZE": 1024},
        num_warps=4,
        num_stages=1,
        reason="a decode of 128 tokens with 8 experts each is one block; a prefill's 16,384 pairs are 16, read twice",
    ),
)

COMBINE_EXPERTS = (
    LaunchRow(
        kernel="combine_experts",
        at_most={},
        constants={"BLOCK_SIZE": 512},
        num_warps=4,
        num_stages=1,
        reason="4 channels a thread; 2,048 to 6,144 channels of a token are 4 to 12 programs",
    ),
)

GROUPED_DENSE = (
    LaunchRow(
        kernel="grouped_dense",
        at_most={"pairs": 16},
        constants={"BLOCK_N": 64, "BLOCK_M": 16, "BLOCK_K": 128},
        num_warps=4,
        num_stages=3,
        reason="decode: experts are read, few tokens each; 16 KB a step under way, 24 programs for an expert of 768",
    ),
    LaunchRow(
        kernel="grouped_dense",
        at_most={},
        constants={"BLOCK_N": 128, "BLOCK_M": 64, "BLOCK_K": 64},
        num_warps=8,
        num_stages=3,
        reason="as the dense product of fixed tiles, few rows wasted where experts have dozens; 8 warps, as addresses"
        " of rows that are looked up take registers: with 4, a thread had 216 on an A100, where 119 do",
    ),
)

GROUPED_QUANTIZED = (
    LaunchRow(
        kernel="grouped_quantized",
        at_most={"pairs": 16},
        constants={"BLOCK_N": 64, "BLOCK_M": 16},
        num_warps=4,
        num_stages=4,
        reason="decode: as the product for few rows, without splits, since several experts fill a device",
    ),
    LaunchRow(
        kernel="grouped_quantized",
        at_most={},
        constants={"BLOCK_N": 128, "BLOCK_M": 64},
        num_warps=8,
        num_stages=3,
        reason="as the product of 64 rows: each tile of tokens unpacks its expert's weights again",
    ),
)

ROWS: tuple[LaunchRow, ...] = CHOOSE_EXPERTS + GROUP_PAIRS + COMBINE_EXPERTS + GROUPED_DENSE + GROUPED_QUANTIZED
"""All of them."""
