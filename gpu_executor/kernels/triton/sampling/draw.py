"""Draws: argmax(score + Gumbel noise) over the tokens up to a row's bound, in two launches.

The first finds, by estimated noise, how far each chunk of the row gets; the second makes the exact noise of the few
tokens that come near the best. A draw is a function of its row and its noise key alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...device_draws import ChunkBests, DrawTable
from ..launches.row import CompileCase, LaunchRow, pick
from ..launches.sampling import CHOOSE, ESTIMATE
from .noise import LARGEST_GAP, SLACK, estimate_noise, exact_noise, noise_words
from .scores import CHUNK, is_up_to, load_logits, num_chunks, scores_of


@triton.jit
def better_of_tile(
    best: tl.tensor,
    best_id: tl.tensor,
    logits: tl.tensor,
    first_id: tl.tensor,
    row_stride: tl.tensor,
    num_drawable: tl.tensor,
    temperature: tl.tensor,
    seed: tl.tensor,
    position: tl.tensor,
    child: tl.tensor,
    bound_score: tl.tensor,
    bound_id: tl.tensor,
    TILE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the better of a token (its score + noise in float64, and its id) and the best of TILE others.

    Exact noise is made only if the estimate says that one of them may be the better.
    """
    tokens = first_id + tl.arange(0, TILE)
    scores = scores_of(load_logits(logits, tokens, row_stride, num_drawable), temperature)
    words = noise_words(seed, position, child, first_id, TILE)
    is_candidate = (tokens < num_drawable) & is_up_to(scores, tokens, bound_score, bound_id)
    estimate = tl.max(tl.where(is_candidate, scores + estimate_noise(words), -float("inf")), axis=0)
    if estimate > -float("inf"):  # noqa: SIM102  # there is a candidate; otherwise the sum below is no number
        if estimate.to(tl.float64) + SLACK + tl.abs(estimate) * 2.0**-20 >= best:
            values = tl.where(is_candidate, scores.to(tl.float64) + exact_noise(words), -float("inf"))
            value = tl.max(values, axis=0)
            token_id = tl.min(tl.where(values == value, tokens, 2147483647), axis=0)
            is_better = (value > best) | ((value == best) & (token_id < best_id))
            best_id = tl.where(is_better, token_id, best_id)
            best = tl.where(is_better, value, best)
    return best, best_id


@triton.jit(do_not_specialize=["num_drawable"])
def estimate_kernel(
    logits: tl.tensor,
    chunk_values: tl.tensor,
    best_values: tl.tensor,
    rows: tl.tensor,
    temperatures: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    bound_scores: tl.tensor,
    bound_ids: tl.tensor,
    owners: tl.tensor,
    children: tl.tensor,
    estimates: tl.tensor,
    row_stride: tl.tensor,
    num_drawable: tl.tensor,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Estimate the best score + noise of one chunk for one draw; -inf if none of its tokens can be drawn."""
    chunk = tl.program_id(0)
    draw = tl.program_id(1).to(tl.int64)
    owner = tl.load(owners + draw)
    row = tl.load(rows + owner).to(tl.int64)
    temperature = tl.load(temperatures + owner)
    bound_score = tl.load(bound_scores + owner)
    estimate = tl.full((), -float("inf"), tl.float32)
    chunk_best = scores_of(tl.load(chunk_values + row * tl.num_programs(0) + chunk), temperature)
    row_best = scores_of(tl.load(best_values + row), temperature)
    if (chunk_best >= bound_score) & (chunk_best + LARGEST_GAP >= row_best):
        bound_id = tl.load(bound_ids + owner)
        seed = tl.load(seeds + owner)
        position = tl.load(positions + owner)
        child = tl.load(children + draw)
        for first_id in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, num_drawable), TILE):
            tokens = first_id + tl.arange(0, TILE)
            x = load_logits(logits + row * row_stride, tokens, row_stride, num_drawable)
            scores = scores_of(x, temperature)
            noise = estimate_noise(noise_words(seed, position, child, first_id, TILE))
            is_candidate = (tokens < num_drawable) & is_up_to(scores, tokens, bound_score, bound_id)
            estimate = tl.maximum(estimate, tl.max(tl.where(is_candidate, scores + noise, -float("inf")), axis=0))
    tl.store(estimates + draw * tl.num_programs(0) + chunk, estimate)


@triton.jit(do_not_specialize=["num_drawable", "num_chunks"])
def choose_kernel(
    logits: tl.tensor,
    rows: tl.tensor,
    temperatures: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    bound_scores: tl.tensor,
    bound_ids: tl.tensor,
    owners: tl.tensor,
    slots: tl.tensor,
    children: tl.tensor,
    estimates: tl.tensor,
    tokens: tl.tensor,
    row_stride: tl.tensor,
    num_drawable: tl.tensor,
    num_chunks: tl.tensor,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
) -> None:
    """Find the token of one draw; where nothing can be drawn it is 0, an id of the vocabulary as any."""
    draw = tl.program_id(0).to(tl.int64)
    owner = tl.load(owners + draw)
    row = tl.load(rows + owner).to(tl.int64)
    temperature = tl.load(temperatures + owner)
    seed = tl.load(seeds + owner)
    position = tl.load(positions + owner)
    child = tl.load(children + draw)
    bound_score = tl.load(bound_scores + owner)
    bound_id = tl.load(bound_ids + owner)
    chunks = tl.arange(0, BLOCK_CHUNKS)
    left = tl.load(estimates + draw * num_chunks + chunks, mask=chunks < num_chunks, other=-float("inf"))
    highest = tl.max(left, axis=0)
    least = tl.maximum(highest - SLACK - tl.abs(highest) * 2.0**-20, -3.4028234663852886e38)
    best = tl.full((), -float("inf"), tl.float64)
    best_id = tl.full((), 2147483647, tl.int32)
    while highest >= least:  # the best chunk first; seldom is there a second one near it
        chunk = tl.min(tl.where(left == highest, chunks, BLOCK_CHUNKS), axis=0)
        for first_id in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, num_drawable), TILE):
            best, best_id = better_of_tile(
                best,
                best_id,
                logits + row * row_stride,
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
        left = tl.where(chunks == chunk, -float("inf"), left)
        highest = tl.max(left, axis=0)
    # Nobody is told the token of a failed row, but its logprob is looked up before the host knows of the failure.
    token_id = tl.where(best_id < num_drawable, best_id, 0)
    tl.store(tokens + tl.load(slots + draw), token_id.to(tl.int64))


def draw_up_to(
    logits: Tensor,
    num_drawable: int,
    bests: ChunkBests,
    best_values: Tensor,
    table: DrawTable,
    bounds: tuple[Tensor, Tensor],
    tokens: Tensor,
) -> None:
    """Draw among each row's tokens up to its bound.

    Args:
        logits: [num_rows, at least num_drawable] float32.
        num_drawable: ids that count.
        bests: of the logits.
        best_values: [num_rows] float32.
        table: the draws.
        bounds: scores [num_random] float32 and ids [num_random] int32.
        tokens: [num_slots] int64, written at the draws' slots, each with a drawable id, those of failed rows too.
    """
    num_draws, chunks = table.owners.shape[0], num_chunks(num_drawable)
    estimates = torch.empty(num_draws, chunks, dtype=torch.float32, device=logits.device)
    keys = (table.rows, table.temperatures, table.seeds, table.positions, *bounds, table.owners)
    row = pick(ESTIMATE)
    estimate_kernel[(chunks, num_draws)](
        logits,
        bests.values,
        best_values,
        *keys,
        table.children,
        estimates,
        logits.shape[1],
        num_drawable,
        CHUNK=CHUNK,
        **row.constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )
    row = pick(CHOOSE)
    choose_kernel[(num_draws,)](
        logits,
        *keys,
        table.slots,
        table.children,
        estimates,
        tokens,
        logits.shape[1],
        num_drawable,
        chunks,
        CHUNK=CHUNK,
        BLOCK_CHUNKS=triton.next_power_of_2(chunks),
        **row.constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )


_KEY_SIGNATURE = (
    {"logits": "*fp32", "rows": "*i32", "temperatures": "*fp32", "seeds": "*i64", "positions": "*i32"}
    | {"bound_scores": "*fp32", "bound_ids": "*i32", "owners": "*i32", "children": "*i32", "estimates": "*fp32"}
    | {"row_stride": "i32:16", "num_drawable": "i32"}
)


def estimate_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilation of a row of the first launch."""
    return [
        CompileCase(
            label="draws",
            function=estimate_kernel,
            signature=_KEY_SIGNATURE | {"chunk_values": "*fp32", "best_values": "*fp32"},
            constants={**row.constants, "CHUNK": CHUNK},
            has_dot=False,
        )
    ]


def choose_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilation of a row of the second launch: for a vocabulary of 128k."""
    return [
        CompileCase(
            label="128k tokens",
            function=choose_kernel,
            signature=_KEY_SIGNATURE | {"slots": "*i32", "tokens": "*i64", "num_chunks": "i32"},
            constants={**row.constants, "CHUNK": CHUNK, "BLOCK_CHUNKS": 32},
            has_dot=False,
        )
    ]
