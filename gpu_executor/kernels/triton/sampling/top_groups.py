"""The best k groups of a row: where its best k tokens are.

A token among the best k of the row is in one of the best k groups (larger maximum first, the lower group among equals):
were there k groups before its own, each would hold a token that comes before it. So the best tokens are found without
sorting the row, and without reading it again.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launches.row import CompileCase, LaunchRow, pick
from ..launches.sampling import TOP_GROUPS
from .scores import ordered_bits, scores_of


@triton.jit
def kth_largest(bits: tl.tensor, k: tl.tensor) -> tl.tensor:
    """Return the k-th largest of a block of int32 numbers, as int64; k is at most their number."""
    low = tl.min(bits, axis=0).to(tl.int64)
    high = tl.max(bits, axis=0).to(tl.int64)
    while low < high:
        middle = low + (high - low + 1) // 2
        is_enough = tl.sum((bits >= middle).to(tl.int32), axis=0) >= k
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough, high, middle - 1)
    return low


@triton.jit(do_not_specialize=["num_groups", "max_count"])
def top_groups_kernel(
    group_max: tl.tensor,
    rows: tl.tensor,
    counts: tl.tensor,
    temperatures: tl.tensor,
    found: tl.tensor,
    num_groups: tl.tensor,
    max_count: tl.tensor,
    HAS_TEMPERATURES: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
) -> None:
    """Find the best groups of one row, in the order of their places."""
    entry = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + entry).to(tl.int64)
    count = tl.minimum(tl.load(counts + entry), num_groups)
    groups = tl.arange(0, BLOCK_GROUPS)
    is_group = groups < num_groups
    largest = tl.load(group_max + row * num_groups + groups, mask=is_group, other=-float("inf"))
    if HAS_TEMPERATURES:
        # Tokens are ordered by score, and two logits may have the same.
        largest = scores_of(largest, tl.load(temperatures + entry))
    else:
        largest = tl.where(largest == 0.0, 0.0, largest)  # no negative zeros: see scores_of
    bits = tl.where(is_group, ordered_bits(largest), -2147483648)
    if count > 0:
        border = kth_largest(bits, count)
        is_border = is_group & (bits == border)
        num_wanted = count - tl.sum((bits > border).to(tl.int32), axis=0)
        is_taken = (bits > border) | (is_border & (tl.cumsum(is_border.to(tl.int32), axis=0) <= num_wanted))
        places = tl.cumsum(is_taken.to(tl.int32), axis=0) - 1
        tl.store(found + entry * max_count + places, groups, mask=is_taken)


def find_top_groups(
    group_max: Tensor, rows: Tensor, counts: Tensor, max_count: int, temperatures: Tensor | None = None
) -> Tensor:
    """Find the best groups of some rows.

    Args:
        group_max: [num_rows, num_groups] float32, no NaN.
        rows: [num_entries] int32, which row each entry is about.
        counts: [at least num_entries] int32, how many groups are wanted, at least 0; all if there are fewer.
        max_count: the most of them, or more.
        temperatures: [at least num_entries] float32, what logits are divided by before they are compared; None for 1.

    Returns:
        [num_entries, min(max_count, num_groups)] int32 group indices, ascending; beyond an entry's count undefined.
    """
    num_entries, num_groups = rows.shape[0], group_max.shape[1]
    max_count = min(max_count, num_groups)
    found = torch.empty(num_entries, max_count, dtype=torch.int32, device=group_max.device)
    row = pick(TOP_GROUPS, groups=num_groups)
    top_groups_kernel[(num_entries,)](
        group_max,
        rows,
        counts,
        group_max if temperatures is None else temperatures,
        found,
        num_groups,
        max_count,
        HAS_TEMPERATURES=temperatures is not None,
        BLOCK_GROUPS=triton.next_power_of_2(num_groups),
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )
    return found


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: the most groups that it is for, or those of 262k tokens."""
    groups = row.at_most.get("groups", 8192)
    return [
        CompileCase(
            label=f"{groups} groups, scores",
            function=top_groups_kernel,
            signature=dict.fromkeys(("group_max", "temperatures"), "*fp32")
            | dict.fromkeys(("rows", "counts", "found"), "*i32")
            | dict.fromkeys(("num_groups", "max_count"), "i32"),
            constants={"HAS_TEMPERATURES": True, "BLOCK_GROUPS": groups},
            has_dot=False,
        )
    ]
