"""The best token of each chunk of a row of logits, and the largest logit of each group: one pass over the logits.

What is found here saves later kernels most of their reading: a chunk whose best token is out of a draw is skipped, and
the best k tokens are looked for in the best k groups.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...device_draws import ChunkBests
from ..launches.row import CompileCase, LaunchRow, pick
from ..launches.sampling import BEST_TOKENS
from .scores import CHUNK, GROUP, load_logits, num_chunks, num_groups


@triton.jit(do_not_specialize=["num_drawable"])
def best_tokens_kernel(
    logits: tl.tensor,
    row_ids: tl.tensor,
    values: tl.tensor,
    ids: tl.tensor,
    group_max: tl.tensor,
    row_stride: tl.tensor,
    num_drawable: tl.tensor,
    HAS_ROW_IDS: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """Find the best token of one chunk of one row."""
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    if HAS_ROW_IDS:
        row = tl.load(row_ids + row).to(tl.int64)
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    x = load_logits(logits + row * row_stride, tokens, row_stride, num_drawable)
    x = tl.where(x != x, float("inf"), x)  # no finite logit hides a NaN then
    best = tl.max(x, axis=0)
    place = row * tl.num_programs(0) + chunk
    tl.store(values + place, best)
    tl.store(ids + place, tl.min(tl.where(x == best, tokens, num_drawable - 1), axis=0))
    if HAS_GROUPS:
        num_groups = tl.cdiv(num_drawable, GROUP)
        groups = chunk * (CHUNK // GROUP) + tl.arange(0, CHUNK // GROUP)
        largest = tl.max(tl.reshape(x, (CHUNK // GROUP, GROUP)), axis=1)
        tl.store(group_max + row * num_groups + groups, largest, mask=groups < num_groups)


def find_best_tokens(logits: Tensor, num_drawable: int, *, with_groups: bool) -> ChunkBests:
    """Find the best token of each chunk of each row.

    Args:
        logits: [num_rows, at least num_drawable] float32, contiguous.
        num_drawable: ids that count.
        with_groups: whether the groups' largest logits are wanted.
    """
    num_rows, device = logits.shape[0], logits.device
    bests = ChunkBests(
        values=torch.empty(num_rows, num_chunks(num_drawable), dtype=torch.float32, device=device),
        ids=torch.empty(num_rows, num_chunks(num_drawable), dtype=torch.int32, device=device),
        group_max=torch.empty(num_rows, num_groups(num_drawable), dtype=torch.float32, device=device)
        if with_groups
        else None,
    )
    _launch(logits, num_drawable, None, bests)
    return bests


def update_best_tokens(logits: Tensor, num_drawable: int, row_ids: Tensor, bests: ChunkBests) -> ChunkBests:
    """Find the best tokens of rows that were edited again.

    Args:
        logits: see `find_best_tokens`.
        num_drawable: see there.
        row_ids: [num_edited] int32, the edited rows, no two alike.
        bests: of all rows before; its `group_max` is updated in place.

    Returns:
        Those of all rows now.
    """
    updated = ChunkBests(bests.values.clone(), bests.ids.clone(), bests.group_max)
    _launch(logits, num_drawable, row_ids, updated)
    return updated


def _launch(logits: Tensor, num_drawable: int, row_ids: Tensor | None, bests: ChunkBests) -> None:
    num_rows = logits.shape[0] if row_ids is None else row_ids.shape[0]
    has_groups = bests.group_max is not None
    row = pick(BEST_TOKENS)
    best_tokens_kernel[(num_chunks(num_drawable), num_rows)](
        logits,
        bests.ids if row_ids is None else row_ids,
        bests.values,
        bests.ids,
        bests.group_max if has_groups else bests.values,
        logits.shape[1],
        num_drawable,
        **_constants(has_row_ids=row_ids is not None, has_groups=has_groups),
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )


def _constants(*, has_row_ids: bool, has_groups: bool) -> dict[str, int]:
    return {"HAS_ROW_IDS": has_row_ids, "HAS_GROUPS": has_groups, "CHUNK": CHUNK, "GROUP": GROUP}


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilations of a row: of a whole step without and with groups, and of some rows."""
    return [
        CompileCase(
            label=label,
            function=best_tokens_kernel,
            signature={
                "logits": "*fp32",
                "row_ids": "*i32",
                "values": "*fp32",
                "ids": "*i32",
                "group_max": "*fp32",
                "row_stride": "i32:16",
                "num_drawable": "i32",
            },
            constants=_constants(has_row_ids=has_row_ids, has_groups=has_groups),
            has_dot=False,
        )
        for label, has_row_ids, has_groups in (("greedy", False, False), ("groups", True, True))
    ]
