"""Pairs of a token and one of its experts, brought together by expert: where grouped products find their rows.

A product's program works on a tile of pairs of one expert. How many tiles each expert has is known on the device alone,
so a launch has as many programs as there could be tiles, and each looks up whose it is (`find_tile`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launches.mixture import GROUP_PAIRS
from ..launches.row import CompileCase, LaunchRow, pick


class PairGroups(NamedTuple):
    """The pairs of a step, by the experts that a rank holds.

    Attributes:
        order: [num_pairs] int32: the pairs of the first expert, those of the second and so on, each expert's ascending;
            what comes after the last expert's is undefined. Pair p is token p // num_chosen.
        ends: [num_experts] int32, where in `order` each expert's pairs end.
        num_chosen: pairs of a token.
    """

    order: Tensor
    ends: Tensor
    num_chosen: int

    def max_tiles(self, tile_pairs: int) -> int:
        """Return how many tiles there are at most: each expert may have one that is not full."""
        num_pairs = self.order.shape[0]
        return num_pairs // tile_pairs + min(num_pairs, self.ends.shape[0])


@triton.jit(do_not_specialize=["num_pairs", "first_expert"])
def group_pairs_kernel(
    expert_ids: tl.tensor,
    order: tl.tensor,
    ends: tl.tensor,
    num_pairs: tl.tensor,
    first_expert: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
) -> None:
    """Find the pairs of one expert: after as many as those before it have."""
    expert = tl.program_id(0)
    offsets = tl.arange(0, BLOCK_SIZE)
    before = 0
    own = 0
    for start in range(0, num_pairs, BLOCK_SIZE):
        pairs = start + offsets
        ids = tl.load(expert_ids + pairs, mask=pairs < num_pairs, other=-1).to(tl.int32) - first_expert
        is_real = pairs < num_pairs
        before += tl.sum((is_real & (ids >= 0) & (ids < expert)).to(tl.int32), axis=0)
        own += tl.sum((is_real & (ids == expert)).to(tl.int32), axis=0)
    tl.store(ends + expert, before + own)
    place = before
    for start in range(0, num_pairs, BLOCK_SIZE):
        pairs = start + offsets
        ids = tl.load(expert_ids + pairs, mask=pairs < num_pairs, other=-1).to(tl.int32) - first_expert
        is_own = (pairs < num_pairs) & (ids == expert)
        tl.store(order + place + tl.cumsum(is_own.to(tl.int32), axis=0) - 1, pairs, mask=is_own)
        place += tl.sum(is_own.to(tl.int32), axis=0)


@triton.jit
def find_tile(
    ends: tl.tensor, tile: tl.tensor, NUM_EXPERTS: tl.constexpr, PADDED_EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return a tile's expert (NUM_EXPERTS: there is no such tile), and where in the order its pairs begin and end."""
    experts = tl.arange(0, PADDED_EXPERTS)
    is_expert = experts < NUM_EXPERTS
    last = tl.load(ends + experts, mask=is_expert, other=0)
    first = tl.load(ends + experts - 1, mask=is_expert & (experts > 0), other=0)
    tile_ends = tl.cumsum(tl.where(is_expert, (last - first + BLOCK_M - 1) // BLOCK_M, 0), axis=0)
    is_before = is_expert & (tile_ends <= tile)
    expert = tl.sum(is_before.to(tl.int32), axis=0)
    tiles_before = tl.max(tl.where(is_before, tile_ends, 0), axis=0)
    begin = tl.max(tl.where(is_before, last, 0), axis=0) + (tile - tiles_before) * BLOCK_M
    end = tl.sum(tl.where(experts == expert, last, 0), axis=0)
    return expert, begin, end


def group_pairs(expert_ids: Tensor, num_experts: int, first_expert: int) -> PairGroups:
    """Bring the pairs of a rank's experts together.

    Args:
        expert_ids: [num_tokens, num_chosen] int64, contiguous, at least one token.
        num_experts: of this rank, at least one.
        first_expert: which of all experts the first of them is.
    """
    num_pairs = expert_ids.numel()
    order = torch.empty(num_pairs, dtype=torch.int32, device=expert_ids.device)
    ends = torch.empty(num_experts, dtype=torch.int32, device=expert_ids.device)
    row = pick(GROUP_PAIRS)
    group_pairs_kernel[(num_experts,)](
        expert_ids,
        order,
        ends,
        num_pairs,
        first_expert,
        **row.constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )
    return PairGroups(order, ends, expert_ids.shape[1])


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilation of a row."""
    return [
        CompileCase(
            label="int64",
            function=group_pairs_kernel,
            signature={"expert_ids": "*i64", "order": "*i32", "ends": "*i32", "num_pairs": "i32"}
            | {"first_expert": "i32"},
            constants=dict(row.constants),
            has_dot=False,
        )
    ]
