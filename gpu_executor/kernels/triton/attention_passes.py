"""The launches that attention is made of: which requests each takes, in which tiles, and how programs share them.

`paged_attention` says what the ways to attend are for.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ...batch.forward_metadata import ForwardMetadata
from ...kv_cache_spec import LayerKVCache
from .fp8 import widens_e4m3
from .launches.attention import (
    CHUNK_ATTENTION,
    DECODE_ATTENTION,
    MAX_DECODE_TOKENS,
    MAX_SHORT_CHUNK_TOKENS,
    SHORT_CHUNK_ATTENTION,
)
from .launches.row import LaunchRow, pick
from .split_sharing import Sharing, Splits, largest_workspace_bytes, share_splits

_NO_LIMIT = 2**31 - 1
# The interpreter runs one program after the other: more slots would only be slower.
_INTERPRETED_MULTIPROCESSORS = 4
_INTERPRETED_WORKSPACE_BYTES = 64 * 2**20


class AttentionDevice(NamedTuple):
    """What launches are chosen by.

    Attributes:
        num_multiprocessors: of the device.
        shared_kib: shared memory that one program can have.
        widens_e4m3: whether the device has an instruction for that.
        workspace_bytes: what the results of shared splits may take.
    """

    num_multiprocessors: int
    shared_kib: int
    widens_e4m3: bool
    workspace_bytes: int


class AttentionPass(NamedTuple):
    """One launch over the requests that have from `least` to `most` tokens in the step.

    Attributes:
        row: launch choices.
        is_searched: requests have room for different numbers of tiles (see `attention_kernel`).
        tiles_per_request: otherwise, what each has room for.
        num_tiles: tiles that there may be.
        num_rows: tokens whose splits may have to be kept.
    """

    row: LaunchRow
    least: int
    most: int
    is_searched: bool
    tiles_per_request: int
    num_tiles: int
    num_rows: int


class AttentionCall(NamedTuple):
    """What all launches of a call share: the arguments of `paged_attention`, and what follows from them.

    Attributes:
        query: channels contiguous.
        kv_cache: of the layer.
        metadata: of the step, or of some of its requests.
        output: written.
        window: keys a token sees; None: all.
        logit_factor: see `attend_span`.
        soft_cap: bound of the scaled logits; None: unbounded.
        device: that launches.
    """

    query: Tensor
    kv_cache: LayerKVCache
    metadata: ForwardMetadata
    output: Tensor
    window: int | None
    logit_factor: float
    soft_cap: float | None
    device: AttentionDevice

    @property
    def group(self) -> int:
        """Query heads that read one KV head."""
        return self.query.shape[1] // self.kv_cache.key.shape[1]


@functools.cache
def attention_device(device: torch.device) -> AttentionDevice:
    """Return what launches are chosen by on a device; for a CPU, what keeps interpreted runs like those of a GPU."""
    if device.type != "cuda":
        return AttentionDevice(_INTERPRETED_MULTIPROCESSORS, _NO_LIMIT, False, _INTERPRETED_WORKSPACE_BYTES)
    properties = torch.cuda.get_device_properties(device)
    # torch's ROCm builds don't have the first, and AMD's programs can't have more than the second.
    shared = getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)
    workspace = largest_workspace_bytes(properties.total_memory)
    return AttentionDevice(properties.multi_processor_count, shared // 1024, widens_e4m3(device), workspace)


def list_passes(call: AttentionCall, *, is_batch_invariant: bool) -> list[AttentionPass]:
    """Return the launches that a step needs: as few as what the host knows of it allows."""
    num_tokens, num_reqs = call.query.shape[0], call.metadata.seq_lens.shape[0]
    longest = num_tokens if num_reqs == 1 else min(call.metadata.max_query_len, num_tokens)
    shortest = longest if num_reqs == 1 else 1
    if is_batch_invariant:
        return [_pass(call, SHORT_CHUNK_ATTENTION, 1, _NO_LIMIT, longest)]
    ways = (
        (DECODE_ATTENTION, 1, MAX_DECODE_TOKENS),
        (SHORT_CHUNK_ATTENTION, MAX_DECODE_TOKENS + 1, MAX_SHORT_CHUNK_TOKENS),
        (CHUNK_ATTENTION, MAX_SHORT_CHUNK_TOKENS + 1, _NO_LIMIT),
    )
    return [
        _pass(call, rows, least, most, longest) for rows, least, most in ways if least <= longest and shortest <= most
    ]


def _pass(call: AttentionCall, rows: tuple[LaunchRow, ...], least: int, most: int, longest: int) -> AttentionPass:
    num_tokens, num_reqs = call.query.shape[0], call.metadata.seq_lens.shape[0]
    row = pick(
        rows,
        head_dim=call.query.shape[2],
        element_bytes=call.query.element_size(),
        kv_bytes=call.kv_cache.key.element_size(),
        shared_kib=call.device.shared_kib,
    )
    tokens_per_tile = rows_of_tile(row, call.group) // call.group
    most = min(most, longest)
    tiles_per_request = triton.cdiv(most, tokens_per_tile)
    # Where all requests have room for a few tiles at most, no program needs to look for its own.
    is_searched = most > MAX_DECODE_TOKENS and num_reqs > 1
    if is_searched:
        return AttentionPass(row, least, most, True, 1, num_tokens // tokens_per_tile + num_reqs, num_tokens)
    return AttentionPass(row, least, most, False, tiles_per_request, num_reqs * tiles_per_request, num_reqs * most)


def rows_of_tile(row: LaunchRow, group: int) -> int:
    """Return the rows of a tile: at least one token's."""
    return max(row.constants["BLOCK_ROWS"], 1 << (group - 1).bit_length())


def most_splits(max_seq_len: int, window: int | None, split_len: int) -> int:
    """Return the most splits that a token's keys lie in."""
    splits = -(-max(max_seq_len, 1) // split_len)
    return splits if window is None else min(splits, -(-(window - 1) // split_len) + 1)


def plan_sharing(call: AttentionCall, launch: AttentionPass, max_splits: int, constants: dict[str, int]) -> Sharing:
    """Return how the splits of a launch are shared.

    Args:
        call: the call.
        launch: for all of its requests.
        max_splits: see `most_splits`.
        constants: the kernel's.
    """
    numbers = launch.num_rows * call.query.shape[1] * max_splits * (constants["BLOCK_DIM"] + 2)
    # A graph is sized for the longest context, whatever it is replayed with; and most tiles of a searched launch may
    # be other launches'.
    is_captured = call.query.is_cuda and torch.cuda.is_current_stream_capturing()
    splits = Splits(
        num_requests=call.metadata.seq_lens.shape[0],
        num_programs=launch.num_tiles * call.kv_cache.key.shape[1],
        max_splits=max_splits,
        split_len=constants["SPLIT_LEN"],
        partial_bytes=4 * numbers,
        is_divisible=not launch.is_searched,
        may_be_short=launch.is_searched or is_captured,
    )
    device = call.device
    return share_splits(splits, num_multiprocessors=device.num_multiprocessors, workspace_bytes=device.workspace_bytes)


def part_of_pass(
    call: AttentionCall, launch: AttentionPass, first: int, end: int
) -> tuple[AttentionCall, AttentionPass]:
    """Return a launch that is not searched for the requests [first, end) alone."""
    metadata, num_reqs = call.metadata, call.metadata.seq_lens.shape[0]
    some = dataclasses.replace(
        metadata,
        block_tables=metadata.block_tables[first:end],
        query_start_loc=metadata.query_start_loc[first : end + 1],
        seq_lens=metadata.seq_lens[first:end],
    )
    num_rows = launch.num_rows // num_reqs * (end - first)
    return call._replace(metadata=some), launch._replace(
        num_tiles=launch.tiles_per_request * (end - first), num_rows=num_rows
    )
