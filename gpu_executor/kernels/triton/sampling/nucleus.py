"""top_p without a search: is the token that was drawn one that top_p leaves? If not, draw among those before it.

What top_p leaves is a head of the row's order, like what the other filters leave before it. The noise belongs to the
token, so a draw from a longer head that falls into a shorter one is the draw from the shorter one: no sort, and no
threshold, is needed. A token is left by top_p iff the probability of all tokens before it is less than top_p times that
of the head. If it is not, nothing from it on is left, and the draw is repeated among the tokens before it. Of a head
with the share p, one draw in p is left; each that is not cuts what remains at a random point, so that even a share of
0.01 takes five or six.

The first question is put by all chunks at once; the few draws that fail go on alone, and read only chunks that reach
the score of the token that failed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...device_draws import ChunkBests, DrawTable
from ..launches.row import CompileCase, LaunchRow, pick
from ..launches.sampling import MASS_BEFORE, REDRAW
from .draw import better_of_tile
from .scores import CHUNK, is_up_to, load_logits, mass_bits, masses_of, num_chunks, scores_of


@triton.jit
def _chunk_scores(
    logits: tl.tensor,
    chunk: tl.tensor,
    temperature: tl.tensor,
    row_stride: tl.tensor,
    num_drawable: tl.tensor,
    CHUNK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return ids and scores of one chunk; what lies beyond the row is -inf."""
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    return tokens, scores_of(load_logits(logits, tokens, row_stride, num_drawable), temperature)


@triton.jit(do_not_specialize=["num_drawable"])
def mass_before_kernel(
    logits: tl.tensor,
    chunk_values: tl.tensor,
    best_values: tl.tensor,
    rows: tl.tensor,
    temperatures: tl.tensor,
    bound_scores: tl.tensor,
    bound_ids: tl.tensor,
    owners: tl.tensor,
    slots: tl.tensor,
    tokens: tl.tensor,
    totals: tl.tensor,
    befores: tl.tensor,
    row_stride: tl.tensor,
    num_drawable: tl.tensor,
    CHUNK: tl.constexpr,
    MASS_BITS: tl.constexpr,
) -> None:
    """Add up, over one chunk, the mass of a row's head and of the tokens before the one that was drawn."""
    chunk = tl.program_id(0)
    draw = tl.program_id(1).to(tl.int64)
    owner = tl.load(owners + draw)
    row = tl.load(rows + owner).to(tl.int64)
    temperature = tl.load(temperatures + owner)
    bound_score = tl.load(bound_scores + owner)
    place = draw * tl.num_programs(0) + chunk
    total = tl.full((), 0, tl.int64)
    before = tl.full((), 0, tl.int64)
    if scores_of(tl.load(chunk_values + row * tl.num_programs(0) + chunk), temperature) >= bound_score:
        drawn_id = tl.load(tokens + tl.load(slots + draw)).to(tl.int32)
        drawn_score = scores_of(tl.load(logits + row * row_stride + drawn_id), temperature)
        best_score = scores_of(tl.load(best_values + row), temperature)
        ids, scores = _chunk_scores(logits + row * row_stride, chunk, temperature, row_stride, num_drawable, CHUNK)
        is_head = is_up_to(scores, ids, bound_score, tl.load(bound_ids + owner))
        masses = masses_of(scores, best_score, is_head, MASS_BITS)
        total = tl.sum(masses, axis=0)
        before = tl.sum(tl.where(is_up_to(scores, ids, drawn_score, drawn_id - 1), masses, 0), axis=0)
    tl.store(totals + place, total)
    tl.store(befores + place, before)


@triton.jit
def _best_before(
    row_logits: tl.tensor,
    row_bests: tl.tensor,
    bound_score: tl.tensor,
    bound_id: tl.tensor,
    temperature: tl.tensor,
    seed: tl.tensor,
    position: tl.tensor,
    child: tl.tensor,
    row_stride: tl.tensor,
    num_drawable: tl.tensor,
    num_chunks: tl.tensor,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """Return the id of the best token, by score + noise, up to a bound."""
    best = tl.full((), -float("inf"), tl.float64)
    best_id = tl.full((), 2147483647, tl.int32)
    for chunk in range(num_chunks):
        if scores_of(tl.load(row_bests + chunk), temperature) >= bound_score:
            for first_id in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, num_drawable), TILE):
                best, best_id = better_of_tile(
                    best,
                    best_id,
                    row_logits,
                    first_id,
                    row_stride,
                    num_drawable,
                    temperature,
                    seed,
                    position,
                    child,
                    bound_score,
                    bound_id,
                    TILE,
                )
    return best_id


@triton.jit
def _mass_of_tokens_before(
    row_logits: tl.tensor,
    row_bests: tl.tensor,
    drawn_score: tl.tensor,
    drawn_id: tl.tensor,
    best_score: tl.tensor,
    temperature: tl.tensor,
    row_stride: tl.tensor,
    num_drawable: tl.tensor,
    num_chunks: tl.tensor,
    CHUNK: tl.constexpr,
    MASS_BITS: tl.constexpr,
) -> tl.tensor:
    """Return the mass of the tokens that come before one."""
    before = tl.full((), 0, tl.int64)
    for chunk in range(num_chunks):
        if scores_of(tl.load(row_bests + chunk), temperature) >= drawn_score:
            ids, scores = _chunk_scores(row_logits, chunk, temperature, row_stride, num_drawable, CHUNK)
            is_before = is_up_to(scores, ids, drawn_score, drawn_id - 1)
            before += tl.sum(masses_of(scores, best_score, is_before, MASS_BITS), axis=0)
    return before


@triton.jit(do_not_specialize=["num_drawable", "num_chunks"])
def redraw_kernel(
    logits: tl.tensor,
    chunk_values: tl.tensor,
    best_values: tl.tensor,
    rows: tl.tensor,
    temperatures: tl.tensor,
    top_ps: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    owners: tl.tensor,
    slots: tl.tensor,
    children: tl.tensor,
    tokens: tl.tensor,
    totals: tl.tensor,
    befores: tl.tensor,
    row_stride: tl.tensor,
    num_drawable: tl.tensor,
    num_chunks: tl.tensor,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
    MASS_BITS: tl.constexpr,
) -> None:
    """Repeat one draw, each time among the tokens before the one drawn last, until it is one that top_p leaves."""
    draw = tl.program_id(0).to(tl.int64)
    owner = tl.load(owners + draw)
    chunks = tl.arange(0, BLOCK_CHUNKS)
    places = draw * num_chunks + chunks
    total = tl.sum(tl.load(totals + places, mask=chunks < num_chunks, other=0), axis=0)
    before = tl.sum(tl.load(befores + places, mask=chunks < num_chunks, other=0), axis=0)
    target = total.to(tl.float64) * tl.load(top_ps + owner)
    slot = tl.load(slots + draw)
    if (before > 0) & (before.to(tl.float64) >= target):
        row = tl.load(rows + owner).to(tl.int64)
        temperature = tl.load(temperatures + owner)
        row_logits = logits + row * row_stride
        row_bests = chunk_values + row * num_chunks
        best_score = scores_of(tl.load(best_values + row), temperature)
        drawn_id = tl.load(tokens + slot).to(tl.int32)
        while (before > 0) & (before.to(tl.float64) >= target):
            bound_score = scores_of(tl.load(row_logits + drawn_id), temperature)
            drawn_id = _best_before(
                row_logits,
                row_bests,
                bound_score,
                drawn_id - 1,
                temperature,
                tl.load(seeds + owner),
                tl.load(positions + owner),
                tl.load(children + draw),
                row_stride,
                num_drawable,
                num_chunks,
                CHUNK,
                TILE,
            )
            drawn_score = scores_of(tl.load(row_logits + drawn_id), temperature)
            before = _mass_of_tokens_before(
                row_logits,
                row_bests,
                drawn_score,
                drawn_id,
                best_score,
                temperature,
                row_stride,
                num_drawable,
                num_chunks,
                CHUNK,
                MASS_BITS,
            )
        tl.store(tokens + slot, drawn_id.to(tl.int64))


def keep_to_nucleus(
    logits: Tensor,
    num_drawable: int,
    bests: ChunkBests,
    best_values: Tensor,
    table: DrawTable,
    bounds: tuple[Tensor, Tensor],
    tokens: Tensor,
) -> None:
    """Repeat the limited draws whose token top_p does not leave.

    Args:
        logits: [num_rows, at least num_drawable] float32.
        num_drawable: ids that count.
        bests: of the logits.
        best_values: [num_rows] float32.
        table: the draws.
        bounds: what the other filters leave: scores [num_random] float32 and ids [num_random] int32.
        tokens: [num_slots] int64, with the tokens drawn among those; written.
    """
    chunks = num_chunks(num_drawable)
    totals, befores = torch.empty(2, table.num_limited, chunks, dtype=torch.int64, device=logits.device)
    about_rows = (logits, bests.values, best_values, table.rows, table.temperatures)
    constants = {"CHUNK": CHUNK, "MASS_BITS": mass_bits(num_drawable)}
    row = pick(MASS_BEFORE)
    mass_before_kernel[(chunks, table.num_limited)](
        *about_rows,
        *bounds,
        table.owners,
        table.slots,
        tokens,
        totals,
        befores,
        logits.shape[1],
        num_drawable,
        **constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )
    row = pick(REDRAW)
    redraw_kernel[(table.num_limited,)](
        *about_rows,
        table.top_ps,
        table.seeds,
        table.positions,
        table.owners,
        table.slots,
        table.children,
        tokens,
        totals,
        befores,
        logits.shape[1],
        num_drawable,
        chunks,
        BLOCK_CHUNKS=triton.next_power_of_2(chunks),
        **constants,
        **row.constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )


_SIGNATURE = (
    dict.fromkeys(("logits", "chunk_values", "best_values", "temperatures"), "*fp32")
    | dict.fromkeys(("rows", "owners", "slots"), "*i32")
    | dict.fromkeys(("tokens", "totals", "befores"), "*i64")
    | {"row_stride": "i32:16", "num_drawable": "i32"}
)


def mass_before_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilation of a row of the first launch: for a vocabulary of 128k."""
    return [
        CompileCase(
            label="128k tokens",
            function=mass_before_kernel,
            signature=_SIGNATURE | {"bound_scores": "*fp32", "bound_ids": "*i32"},
            constants={"CHUNK": CHUNK, "MASS_BITS": mass_bits(131072)},
            has_dot=False,
        )
    ]


def redraw_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilation of a row of the second launch: for a vocabulary of 128k."""
    return [
        CompileCase(
            label="128k tokens",
            function=redraw_kernel,
            signature=_SIGNATURE
            | {"top_ps": "*fp64", "seeds": "*i64", "positions": "*i32", "children": "*i32", "num_chunks": "i32"},
            constants={**row.constants, "CHUNK": CHUNK, "BLOCK_CHUNKS": 32, "MASS_BITS": mass_bits(131072)},
            has_dot=False,
        )
    ]
