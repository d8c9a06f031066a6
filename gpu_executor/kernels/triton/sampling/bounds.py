"""Where the filters min_p and top_k cut a row: its bound, the last token that they leave.

top_p comes after them, and needs no bound: see nucleus.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...device_draws import OK, ChunkBests, DrawTable
from ..launches.row import CompileCase, LaunchRow, pick
from ..launches.sampling import BOUNDS
from .scores import GROUP, load_logits, ordered_bits, scores_of, value_of
from .top_groups import find_top_groups

_EVERY_ID = tl.constexpr(2147483647)
_LOWEST_FINITE = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _load_bits(
    logits: tl.tensor,
    group_ids: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    temperature: tl.tensor,
    row_stride: tl.tensor,
    num_drawable: tl.tensor,
    BLOCK_GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
) -> tl.tensor:
    """Return ids and ordered scores of the tokens of the groups group_ids[first:first + BLOCK_GROUPS], flat."""
    entries = first + tl.arange(0, BLOCK_GROUPS)
    groups = tl.load(group_ids + entries, mask=entries < count, other=0)
    tokens = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    is_token = (entries < count)[:, None] & (tokens < num_drawable)
    x = load_logits(logits, tokens, row_stride, num_drawable)
    bits = tl.where(is_token, ordered_bits(scores_of(x, temperature)), -2147483648)
    return tl.reshape(tokens, (BLOCK_GROUPS * GROUP,)), tl.reshape(bits, (BLOCK_GROUPS * GROUP,))


@triton.jit
def _top_k_bound(
    logits: tl.tensor,
    group_ids: tl.tensor,
    k: tl.tensor,
    count: tl.tensor,
    best_score: tl.tensor,
    temperature: tl.tensor,
    row_stride: tl.tensor,
    num_drawable: tl.tensor,
    BLOCK_GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    IS_ONE_TILE: tl.constexpr,
) -> tl.tensor:
    """Return score and id of the k-th token of a row, all of whose first k are in its `count` groups.

    The score is found by bisection, then the id by another one among the tokens of that score.
    """
    ids, bits = _load_bits(logits, group_ids, 0, count, temperature, row_stride, num_drawable, BLOCK_GROUPS, GROUP)
    low = tl.full((), -2147483647, tl.int64)
    high = ordered_bits(best_score).to(tl.int64)
    while low < high:
        middle = low + (high - low + 1) // 2
        num_found = tl.sum((bits >= middle).to(tl.int32), axis=0)
        if not IS_ONE_TILE:
            for first in range(BLOCK_GROUPS, count, BLOCK_GROUPS):
                _, more = _load_bits(
                    logits, group_ids, first, count, temperature, row_stride, num_drawable, BLOCK_GROUPS, GROUP
                )
                num_found += tl.sum((more >= middle).to(tl.int32), axis=0)
        low = tl.where(num_found >= k, middle, low)
        high = tl.where(num_found >= k, high, middle - 1)
    num_before = tl.sum((bits > low).to(tl.int32), axis=0)
    if not IS_ONE_TILE:
        for first in range(BLOCK_GROUPS, count, BLOCK_GROUPS):
            _, more = _load_bits(
                logits, group_ids, first, count, temperature, row_stride, num_drawable, BLOCK_GROUPS, GROUP
            )
            num_before += tl.sum((more > low).to(tl.int32), axis=0)
    low_id = tl.full((), 0, tl.int32)
    high_id = num_drawable - 1
    while low_id < high_id:
        middle_id = low_id + (high_id - low_id) // 2
        num_found = tl.sum(((bits == low) & (ids <= middle_id)).to(tl.int32), axis=0)
        if not IS_ONE_TILE:
            for first in range(BLOCK_GROUPS, count, BLOCK_GROUPS):
                more_ids, more = _load_bits(
                    logits, group_ids, first, count, temperature, row_stride, num_drawable, BLOCK_GROUPS, GROUP
                )
                num_found += tl.sum(((more == low) & (more_ids <= middle_id)).to(tl.int32), axis=0)
        is_enough = num_before + num_found >= k
        high_id = tl.where(is_enough, middle_id, high_id)
        low_id = tl.where(is_enough, low_id, middle_id + 1)
    return value_of(low), low_id


@triton.jit(do_not_specialize=["num_drawable", "num_top_k", "num_groups", "max_count"])
def bounds_kernel(
    logits: tl.tensor,
    best_values: tl.tensor,
    states: tl.tensor,
    rows: tl.tensor,
    temperatures: tl.tensor,
    log_min_ps: tl.tensor,
    top_ks: tl.tensor,
    group_ids: tl.tensor,
    bound_scores: tl.tensor,
    bound_ids: tl.tensor,
    row_stride: tl.tensor,
    num_drawable: tl.tensor,
    num_top_k: tl.tensor,
    num_groups: tl.tensor,
    max_count: tl.tensor,
    HAS_TOP_K: tl.constexpr,
    IS_ONE_TILE: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    OK: tl.constexpr,
) -> None:
    """Find the bound of one row; NaN if nothing can be drawn from it."""
    entry = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + entry).to(tl.int64)
    bound_score = tl.full((), float("nan"), tl.float32)
    bound_id = tl.full((), _EVERY_ID, tl.int32)
    if tl.load(states + row) == OK:
        temperature = tl.load(temperatures + entry)
        best_score = scores_of(tl.load(best_values + row), temperature)
        # p >= min_p * the largest p, without computing a probability. A masked token is never a candidate.
        bound_score = tl.maximum(best_score + tl.load(log_min_ps + entry), _LOWEST_FINITE)
        if HAS_TOP_K:  # noqa: SIM102  # `and` would make a constant of the compiler's a condition of the device
            if entry < num_top_k:
                k = tl.load(top_ks + entry)
                kth_score, kth_id = _top_k_bound(
                    logits + row * row_stride,
                    group_ids + entry * max_count,
                    k,
                    tl.minimum(k, num_groups),
                    best_score,
                    temperature,
                    row_stride,
                    num_drawable,
                    BLOCK_GROUPS,
                    GROUP,
                    IS_ONE_TILE,
                )
                bound_id = tl.where(kth_score >= bound_score, kth_id, bound_id)
                bound_score = tl.maximum(kth_score, bound_score)
    tl.store(bound_scores + entry, bound_score)
    tl.store(bound_ids + entry, bound_id)


def find_bounds(
    logits: Tensor, num_drawable: int, bests: ChunkBests, best_values: Tensor, states: Tensor, table: DrawTable
) -> tuple[Tensor, Tensor]:
    """Find the bound of each row that is left to chance.

    Args:
        logits: [num_rows, at least num_drawable] float32.
        num_drawable: ids that count.
        bests: of the logits, with groups if a row has top_k.
        best_values: [num_rows] float32.
        states: [num_rows] int64.
        table: the rows that are left to chance.

    Returns:
        Scores [num_random] float32 and ids [num_random] int32.
    """
    num_random, num_top_k, max_top_k = table.rows.shape[0], table.num_top_k, table.max_top_k
    scores = torch.empty(num_random, dtype=torch.float32, device=logits.device)
    ids = torch.empty(num_random, dtype=torch.int32, device=logits.device)
    group_ids, groups = ids, 0
    if num_top_k:
        assert bests.group_max is not None, "groups are found where a row has top_k"
        groups = bests.group_max.shape[1]
        group_ids = find_top_groups(
            bests.group_max, table.rows[:num_top_k], table.top_ks, max_top_k, table.temperatures
        )
    row = pick(BOUNDS, top_k=max_top_k)
    bounds_kernel[(num_random,)](
        logits,
        best_values,
        states,
        table.rows,
        table.temperatures,
        table.log_min_ps,
        table.top_ks,
        group_ids,
        scores,
        ids,
        logits.shape[1],
        num_drawable,
        num_top_k,
        groups,
        min(max_top_k, groups),
        HAS_TOP_K=num_top_k > 0,
        GROUP=GROUP,
        OK=OK,
        **row.constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )
    return scores, ids


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: with top_k, which the last row alone does without as well."""
    return [
        CompileCase(
            label="top_k",
            function=bounds_kernel,
            signature=dict.fromkeys(("logits", "best_values", "temperatures", "log_min_ps", "bound_scores"), "*fp32")
            | {"states": "*i64"}
            | dict.fromkeys(("rows", "top_ks", "group_ids", "bound_ids"), "*i32")
            | {"row_stride": "i32:16"}
            | dict.fromkeys(("num_drawable", "num_top_k", "num_groups", "max_count"), "i32"),
            constants={**row.constants, "HAS_TOP_K": True, "GROUP": GROUP, "OK": OK},
            has_dot=False,
        )
    ]
