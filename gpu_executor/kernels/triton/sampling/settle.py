"""From the best tokens of chunks to a row's best token, its error if it has one, and the token of a greedy row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...device_draws import NOT_FINITE, NOTHING_TO_DRAW, OK, ChunkBests
from ..launches.row import CompileCase, LaunchRow, pick
from ..launches.sampling import SETTLE


@triton.jit(do_not_specialize=["num_chunks", "last_id"])
def settle_kernel(
    raw_values: tl.tensor,
    values: tl.tensor,
    ids: tl.tensor,
    best_values: tl.tensor,
    tokens: tl.tensor,
    states: tl.tensor,
    num_chunks: tl.tensor,
    last_id: tl.tensor,
    BLOCK_CHUNKS: tl.constexpr,
    OK: tl.constexpr,
    NOT_FINITE: tl.constexpr,
    NOTHING_TO_DRAW: tl.constexpr,
) -> None:
    """Settle one row."""
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, BLOCK_CHUNKS)
    is_chunk = chunks < num_chunks
    places = row * num_chunks + chunks
    raw_best = tl.max(tl.load(raw_values + places, mask=is_chunk, other=-float("inf")), axis=0)
    chunk_values = tl.load(values + places, mask=is_chunk, other=-float("inf"))
    best = tl.max(chunk_values, axis=0)
    chunk_ids = tl.load(ids + places, mask=is_chunk & (chunk_values == best), other=2147483647)
    is_finite = (tl.abs(raw_best) < float("inf")) & (best < float("inf"))
    state = tl.where(is_finite, tl.where(best == -float("inf"), NOTHING_TO_DRAW, OK), NOT_FINITE)
    tl.store(best_values + row, best)
    tl.store(states + row, state.to(tl.int64))
    # Whatever becomes of the row, a token of the vocabulary stands there: the next step may look it up.
    tl.store(tokens + row, tl.minimum(tl.min(chunk_ids, axis=0), last_id).to(tl.int64))


def settle(raw: ChunkBests, bests: ChunkBests, num_drawable: int, tokens: Tensor, states: Tensor) -> Tensor:
    """Find each row's best token.

    Args:
        raw: of the logits as the model gave them.
        bests: of the logits as they are now; the same if none was edited.
        num_drawable: ids that count.
        tokens: [at least num_rows] int64; the first num_rows are written.
        states: [num_rows] int64; written: `OK`, `NOT_FINITE` or `NOTHING_TO_DRAW`.

    Returns:
        [num_rows] float32, each row's largest logit.
    """
    num_rows, chunks = bests.values.shape
    best_values = torch.empty(num_rows, dtype=torch.float32, device=bests.values.device)
    row = pick(SETTLE)
    settle_kernel[(num_rows,)](
        raw.values,
        bests.values,
        bests.ids,
        best_values,
        tokens,
        states,
        chunks,
        num_drawable - 1,
        **_constants(chunks),
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )
    return best_values


def _constants(num_chunks: int) -> dict[str, int]:
    states = {"OK": OK, "NOT_FINITE": NOT_FINITE, "NOTHING_TO_DRAW": NOTHING_TO_DRAW}
    return {"BLOCK_CHUNKS": triton.next_power_of_2(num_chunks), **states}


def compile_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilation of a row: for a vocabulary of 128k."""
    return [
        CompileCase(
            label="128k tokens",
            function=settle_kernel,
            signature=dict.fromkeys(("raw_values", "values", "best_values"), "*fp32")
            | {"ids": "*i32"}
            | dict.fromkeys(("tokens", "states"), "*i64")
            | dict.fromkeys(("num_chunks", "last_id"), "i32"),
            constants=_constants(32),
            has_dot=False,
        )
    ]
