"""Logprobs of tokens under rows of raw logits, their ranks, and the rows' best tokens, in order.

The normalizer is the logarithm of a sum of integers (see scores.py), so that its bits do not depend on how a row is
cut. The best tokens of a row are looked for in its best groups.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...device_draws import ChunkBests, Reports, ReportTable
from ..launches.row import CompileCase, LaunchRow, pick
from ..launches.sampling import DESCRIBE_CHUNKS, DESCRIBE_ROWS
from .scores import CHUNK, GROUP, load_logits, mass_bits, masses_of, num_chunks, ordered_bits, value_of
from .top_groups import find_top_groups


@triton.jit
def _raw_logits(row_logits: tl.tensor, ids: tl.tensor, row_stride: tl.tensor, num_drawable: tl.tensor) -> tl.tensor:
    x = load_logits(row_logits, ids, row_stride, num_drawable)
    return tl.where(x == 0.0, 0.0, x)  # no negative zeros: see scores_of


@triton.jit(do_not_specialize=["num_drawable"])
def describe_chunks_kernel(
    logits: tl.tensor,
    chunk_values: tl.tensor,
    rows: tl.tensor,
    slots: tl.tensor,
    tokens: tl.tensor,
    masses: tl.tensor,
    num_before: tl.tensor,
    row_stride: tl.tensor,
    num_drawable: tl.tensor,
    CHUNK: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
    MASS_BITS: tl.constexpr,
) -> None:
    """Add up the mass of one chunk and count its tokens that come before a report's token."""
    chunk = tl.program_id(0)
    num_chunks = tl.num_programs(0)
    report = tl.program_id(1).to(tl.int64)
    row = tl.load(rows + report).to(tl.int64)
    chunks = tl.arange(0, BLOCK_CHUNKS)
    bests = tl.load(chunk_values + row * num_chunks + chunks, mask=chunks < num_chunks, other=-float("inf"))
    best = tl.max(bests, axis=0)
    if tl.abs(best) < float("inf"):  # otherwise the row has failed, and nobody reads its report
        row_logits = logits + row * row_stride
        token_id = tl.load(tokens + tl.load(slots + report)).to(tl.int32)
        value = tl.load(row_logits + token_id)
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        x = _raw_logits(row_logits, ids, row_stride, num_drawable)
        mass = tl.sum(masses_of(x, best, ids < num_drawable, MASS_BITS), axis=0)
        is_before = (x > value) | ((x == value) & (ids < token_id))
        tl.store(masses + report * num_chunks + chunk, mass)
        tl.store(num_before + report * num_chunks + chunk, tl.sum(is_before.to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["num_drawable", "num_chunks", "num_groups", "max_top"])
def describe_rows_kernel(
    logits: tl.tensor,
    chunk_values: tl.tensor,
    rows: tl.tensor,
    slots: tl.tensor,
    num_tops: tl.tensor,
    tokens: tl.tensor,
    masses: tl.tensor,
    num_before: tl.tensor,
    group_ids: tl.tensor,
    normalizers: tl.tensor,
    logprobs: tl.tensor,
    ranks: tl.tensor,
    top_ids: tl.tensor,
    top_logprobs: tl.tensor,
    row_stride: tl.tensor,
    num_drawable: tl.tensor,
    num_chunks: tl.tensor,
    num_groups: tl.tensor,
    max_top: tl.tensor,
    BLOCK_CHUNKS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    MASS_BITS: tl.constexpr,
) -> None:
    """Write one report. BLOCK_GROUPS: at least its num_tops; 0 if no report of the launch has any."""
    report = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + report).to(tl.int64)
    row_logits = logits + row * row_stride
    chunks = tl.arange(0, BLOCK_CHUNKS)
    is_chunk = chunks < num_chunks
    best = tl.max(tl.load(chunk_values + row * num_chunks + chunks, mask=is_chunk, other=-float("inf")), axis=0)
    if tl.abs(best) < float("inf"):
        mass = tl.sum(tl.load(masses + report * num_chunks + chunks, mask=is_chunk, other=0), axis=0)
        normalizer = best.to(tl.float64) + tl.log(mass.to(tl.float64) * 2.0**-MASS_BITS)
        tl.store(normalizers + report, normalizer)
        token_id = tl.load(tokens + tl.load(slots + report))
        tl.store(logprobs + report, (tl.load(row_logits + token_id).to(tl.float64) - normalizer).to(tl.float32))
        before = tl.load(num_before + report * num_chunks + chunks, mask=is_chunk, other=0)
        tl.store(ranks + report, tl.sum(before, axis=0) + 1)
        if BLOCK_GROUPS > 0:
            num_top = tl.load(num_tops + report)
            entries = tl.arange(0, BLOCK_GROUPS)
            is_group = entries < tl.minimum(num_top, num_groups)
            groups = tl.load(group_ids + report * tl.minimum(max_top, num_groups) + entries, mask=is_group, other=0)
            ids = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
            is_token = is_group[:, None] & (ids < num_drawable)
            bits = ordered_bits(_raw_logits(row_logits, ids, row_stride, num_drawable)).to(tl.int64)
            # One number a token, the larger the earlier in the order.
            keys = tl.where(is_token, (bits << 32) | (2147483647 - ids).to(tl.int64), -9223372036854775808)
            keys = tl.reshape(keys, (BLOCK_GROUPS * GROUP,))
            for place in range(num_top):
                key = tl.max(keys, axis=0)
                keys = tl.where(keys == key, -9223372036854775808, keys)
                logprob = (value_of(key >> 32).to(tl.float64) - normalizer).to(tl.float32)
                tl.store(top_ids + report * max_top + place, (2147483647 - (key & 0xFFFFFFFF)).to(tl.int32))
                tl.store(top_logprobs + report * max_top + place, logprob)


def describe_tokens(
    logits: Tensor, num_drawable: int, bests: ChunkBests, tokens: Tensor, table: ReportTable, reports: Reports
) -> None:
    """Write the logprobs, ranks and best tokens that are asked for.

    Args:
        logits: [num_rows, at least num_drawable] float32, raw.
        num_drawable: ids that count.
        bests: of these logits, with groups if a report has best tokens.
        tokens: [num_slots] int64, each a drawable one.
        table: what is asked for; num_tops are at most `num_drawable`.
        reports: written.
    """
    num_reports, chunks = table.rows.shape[0], num_chunks(num_drawable)
    masses = torch.empty(num_reports, chunks, dtype=torch.int64, device=logits.device)
    num_before = torch.empty_like(masses, dtype=torch.int32)
    about_rows = (logits, bests.values, table.rows, table.slots)
    constants = {"BLOCK_CHUNKS": triton.next_power_of_2(chunks), "MASS_BITS": mass_bits(num_drawable)}
    row = pick(DESCRIBE_CHUNKS)
    describe_chunks_kernel[(chunks, num_reports)](
        *about_rows,
        tokens,
        masses,
        num_before,
        logits.shape[1],
        num_drawable,
        CHUNK=CHUNK,
        **constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )
    group_ids, groups = table.rows, 0
    if table.max_top:
        assert bests.group_max is not None, "groups are found where best tokens are asked for"
        groups = bests.group_max.shape[1]
        group_ids = find_top_groups(bests.group_max, table.rows, table.num_tops, table.max_top)
    row = pick(DESCRIBE_ROWS, top=table.max_top)
    describe_rows_kernel[(num_reports,)](
        *about_rows,
        table.num_tops,
        tokens,
        masses,
        num_before,
        group_ids,
        *(reports.normalizers, reports.logprobs, reports.ranks, reports.top_ids, reports.top_logprobs),
        logits.shape[1],
        num_drawable,
        chunks,
        groups,
        table.max_top,
        GROUP=GROUP,
        **constants,
        **row.constants,
        num_warps=row.num_warps,
        num_stages=row.num_stages,
    )


_SIGNATURE = (
    dict.fromkeys(("logits", "chunk_values"), "*fp32")
    | dict.fromkeys(("rows", "slots", "num_before"), "*i32")
    | dict.fromkeys(("tokens", "masses"), "*i64")
    | {"row_stride": "i32:16", "num_drawable": "i32"}
)


def describe_chunks_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilation of a row of the first launch: for a vocabulary of 128k."""
    return [
        CompileCase(
            label="128k tokens",
            function=describe_chunks_kernel,
            signature=_SIGNATURE,
            constants={"CHUNK": CHUNK, "BLOCK_CHUNKS": 32, "MASS_BITS": mass_bits(131072)},
            has_dot=False,
        )
    ]


def describe_rows_cases(row: LaunchRow) -> list[CompileCase]:
    """Return the compilation of a row of the second launch: for a vocabulary of 128k."""
    return [
        CompileCase(
            label="128k tokens",
            function=describe_rows_kernel,
            signature=_SIGNATURE
            | dict.fromkeys(("num_tops", "group_ids", "ranks", "top_ids"), "*i32")
            | dict.fromkeys(("logprobs", "top_logprobs"), "*fp32")
            | {"normalizers": "*fp64"}
            | dict.fromkeys(("num_chunks", "num_groups", "max_top"), "i32"),
            constants={**row.constants, "BLOCK_CHUNKS": 32, "GROUP": GROUP, "MASS_BITS": mass_bits(131072)},
            has_dot=False,
        )
    ]
