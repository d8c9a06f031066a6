"""Repetition, frequency and presence penalties of all rows that have them, in place.

A row's tokens are counted in a table over the vocabulary, by integer additions, whose order does not matter. Then each
token of the row takes its count out of the table: the first of equal ones finds it and penalizes the logit, the others
find zero. So the work goes with a row's tokens, not with the vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...device_draws import PenaltyTable
from ..launches.row import CompileCase, LaunchRow, pick
from ..launches.sampling import COUNT_TOKENS, PENALIZE

# The cost's product is rounded before the sum, as on the CPU.
_OPTIONS = {"enable_fp_fusion": False}

# Rows whose tables exist at once, 4 bytes a token of the vocabulary each: 32 MiB for 128k.
_ROWS_AT_ONCE = 64

_SEEN = tl.constexpr(1 << 30)
"""Set in the count of a token of the prompt; the bits below it count the output."""


@triton.jit(do_not_specialize=["num_drawable", "first_row"])
def count_tokens_kernel(
    token_ids: tl.tensor,
    starts: tl.tensor,
    num_prompt_tokens: tl.tensor,
    num_tokens: tl.tensor,
    counts: tl.tensor,
    num_drawable: tl.tensor,
    first_row: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Count BLOCK tokens of one row."""
    entry = first_row + tl.program_id(1)
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_token = places < tl.load(num_tokens + entry)
    ids = tl.load(token_ids + tl.load(starts + entry) + places, mask=is_token, other=-1)
    is_counted = is_token & (ids >= 0) & (ids < num_drawable)
    is_prompt = places < tl.load(num_prompt_tokens + entry)
    table = counts + tl.program_id(1).to(tl.int64) * num_drawable
    tl.atomic_or(table + ids, tl.full((BLOCK,), _SEEN, tl.int32), mask=is_counted & is_prompt)
    tl.atomic_add(table + ids, tl.full((BLOCK,), 1, tl.int32), mask=is_counted & ~is_prompt)


@triton.jit(do_not_specialize=["num_drawable", "first_row"])
def penalize_kernel(
    logits: tl.tensor,
    rows: tl.tensor,
    token_ids: tl.tensor,
    starts: tl.tensor,
    num_tokens: tl.tensor,
    repetitions: tl.tensor,
    frequencies: tl.tensor,
    presences: tl.tensor,
    counts: tl.tensor,
    row_stride: tl.tensor,
    num_drawable: tl.tensor,
    first_row: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Penalize those of BLOCK tokens of one row that find their count."""
    entry = first_row + tl.program_id(1)
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_token = places < tl.load(num_tokens + entry)
    ids = tl.load(token_ids + tl.load(starts + entry) + places, mask=is_token, other=-1)
    is_counted = is_token & (ids >= 0) & (ids < num_drawable)
    table = counts + tl.program_id(1).to(tl.int64) * num_drawable
    count = tl.atomic_xchg(table + ids, tl.zeros((BLOCK,), tl.int32), mask=is_counted)
    is_first = is_counted & (count != 0)
    row_logits = logits + tl.load(rows + entry).to(tl.int64) * row_stride
    x = tl.load(row_logits + ids, mask=is_first, other=0.0)
    repetition = tl.load(repetitions + entry)
    x = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
    num_outputs = count & (_SEEN - 1)
    cost = num_outputs.to(tl.float32) * tl.load(frequencies + entry) + tl.load(presences + entry)
    tl.store(row_logits + ids, tl.where(num_outputs > 0, x - cost, x), mask=is_first)


def penalize(logits: Tensor, num_drawable: int, table: PenaltyTable) -> None:
    """Penalize the tokens that occurred.

    Args:
        logits: [num_rows, at least num_drawable] float32, edited in place.
        num_drawable: ids that count.
        table: which rows, how much, and their tokens.
    """
    num_penalized = table.rows.shape[0]
    for first_row in range(0, num_penalized, _ROWS_AT_ONCE):
        num_rows = min(_ROWS_AT_ONCE, num_penalized - first_row)
        counts = torch.zeros(num_rows, num_drawable, dtype=torch.int32, device=logits.device)
        row = pick(COUNT_TOKENS)
        count_tokens_kernel[(triton.cdiv(table.max_tokens, row.constants["BLOCK"]), num_rows)](
            table.token_ids,
            table.starts,
            table.num_prompt_tokens,
            table.num_tokens,
            counts,
            num_drawable,
            first_row,
            **row.constants,
            num_warps=row.num_warps,
            num_stages=row.num_stages,
        )
        row = pick(PENALIZE)
        penalize_kernel[(triton.cdiv(table.max_tokens, row.constants["BLOCK"]), num_rows)](
            logits,
            table.rows,
            table.token_ids,
            table.starts,
            table.num_tokens,
            table.repetitions,
            table.frequencies,
            table.presences,
            counts,
            logits.shape[1],
            num_drawable,
            first_row,
            **row.constants,
            num_warps=row.num_warps,
            num_stages=row.num_stages,
            **_OPTIONS,
        )


_SIGNATURE = (
    dict.fromkeys(("token_ids", "num_tokens", "counts"), "*i32")
    | {"starts": "*i64"}
    | dict.fromkeys(("num_drawable", "first_row"), "i32")
)


def count_tokens_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilation of a row of the first launch."""
    return [
        CompileCase(
            label="int32 ids",
            function=count_tokens_kernel,
            signature=_SIGNATURE | {"num_prompt_tokens": "*i32"},
            constants=row.constants,
            has_dot=False,
        )
    ]


def penalize_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilation of a row of the second launch."""
    return [
        CompileCase(
            label="int32 ids",
            function=penalize_kernel,
            signature=_SIGNATURE
            | dict.fromkeys(("logits", "repetitions", "frequencies", "presences"), "*fp32")
            | {"rows": "*i32", "row_stride": "i32:16"},
            constants=row.constants,
            has_dot=False,
            options=_OPTIONS,
        )
    ]
