"""Pairs stand together by expert, in order, and each tile finds its own."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

import triton
import triton.language as tl

from pagewire.gpu_executor.kernels.triton.mixture.group import PairGroups, find_tile, group_pairs

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def pairs_of(groups: PairGroups) -> list[list[int]]:
    starts = [0, *groups.ends.tolist()]
    return [groups.order[a:b].tolist() for a, b in itertools.pairwise(starts)]


def choices(num_tokens: int, num_experts: int, num_chosen: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randperm(num_experts, generator=generator)[:num_chosen].sort().values for _ in range(num_tokens)]
    return torch.stack(rows)


@pytest.mark.parametrize(("num_tokens", "num_chosen"), [(1, 2), (5, 3), (700, 3)])
@pytest.mark.parametrize(("num_experts", "first_expert"), [(7, 0), (3, 2), (1, 6)])
def test_pairs_of_an_expert_stand_together_in_order(
    num_tokens: int, num_chosen: int, num_experts: int, first_expert: int
) -> None:
    expert_ids = choices(num_tokens, 7, num_chosen)
    chosen = expert_ids.flatten().tolist()
    groups = group_pairs(expert_ids, num_experts, first_expert)
    assert pairs_of(groups) == [
        [pair for pair, expert in enumerate(chosen) if expert == first_expert + index] for index in range(num_experts)
    ]
    assert groups.num_chosen == num_chosen


@triton.jit
def tiles_kernel(ends: tl.tensor, found: tl.tensor, NUM_EXPERTS: tl.constexpr, PADDED: tl.constexpr) -> None:
    """Write down what each tile of 4 pairs finds."""
    tile = tl.program_id(0)
    expert, begin, end = find_tile(ends, tile, NUM_EXPERTS, PADDED, 4)
    tl.store(found + 3 * tile, expert)
    tl.store(found + 3 * tile + 1, begin)
    tl.store(found + 3 * tile + 2, end)


@pytest.mark.parametrize("sizes", [[3], [0, 0, 5], [4, 0, 1, 9, 0], [0, 0, 0, 8, 0, 0]])
def test_tiles_cover_each_experts_pairs_and_no_others(sizes: list[int]) -> None:
    ends = torch.tensor(sizes).cumsum(0).int()
    order = torch.empty(sum(sizes), dtype=torch.int32)
    max_tiles = PairGroups(order, ends, 1).max_tiles(4)
    found = torch.zeros(max_tiles, 3, dtype=torch.int32)
    tiles_kernel[(max_tiles,)](ends, found, NUM_EXPERTS=len(sizes), PADDED=triton.next_power_of_2(len(sizes)))
    covered: list[list[int]] = [[] for _ in sizes]
    for expert, begin, end in found.tolist():
        if expert < len(sizes):
            covered[expert] += range(begin, min(begin + 4, end))
    starts = [0, *ends.tolist()]
    assert covered == [list(range(a, b)) for a, b in itertools.pairwise(starts)]
