"""Random inputs of ops: the same numbers on the host and, as bits, on the device."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pagewire.checkpoint.model_config import LayerKind
from pagewire.gpu_executor.batch.forward_metadata import ForwardMetadata
from pagewire.gpu_executor.kernels.layouts import DenseWeight, Fp8Weight, Int4Weight, Int8Weight
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kv_cache_spec import KVCacheSpec, LayerKVCache

BLOCK_SIZE = 16
_GROUP = 32
_FP8_TILE = 128
PlainWeight = DenseWeight | Fp8Weight | Int4Weight | Int8Weight
Tensors = TypeVar("Tensors", bound=PlainWeight | ForwardMetadata)


class Chunk(NamedTuple):
    """What a request does in a step: its tokens in the cache when the step ends, and of those the step's own."""

    length: int
    num_tokens: int


class Paged(NamedTuple):
    """A step over paged memory, and the step that would have written all of it at once.

    Attributes:
        step: the chunks.
        whole: each request's tokens from the first on, in the same blocks.
        num_blocks: of the pool; more than the requests use.
    """

    step: ForwardMetadata
    whole: ForwardMetadata
    num_blocks: int


def numbers(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return normal numbers."""
    return torch.randn(shape, generator=generator).to(dtype)


class Inputs:
    """Makes inputs of one dtype.

    Args:
        dtype: of activations.
        device: where the op that is checked computes.
        seed: of the numbers.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int = 1) -> None:
        self.dtype = dtype
        self.device = device
        self.generator = torch.Generator().manual_seed(seed)

    def numbers(self, *shape: int) -> tuple[Tensor, Tensor]:
        """Return the same normal numbers on the host, as float32, and on the device."""
        values = numbers(self.generator, *shape, dtype=self.dtype)
        return values.float(), values.to(self.device)


def weight_of(layout: str, generator: torch.Generator, out_features: int, in_features: int) -> PlainWeight:
    """Return a random matrix whose products keep the size of what they multiply.

    Args:
        layout: "float16", "bfloat16", "float32", "int4", "int8" or "fp8" (tiles of 128 x 128); "int4-128" (in groups of
            so many), "int4-permuted", "int8-16" (with minima, in groups of 16) or "fp8-rows".
        generator: of the numbers.
        out_features: rows.
        in_features: columns; a multiple of 32.
    """
    kind, _, variant = layout.partition("-")
    match kind:
        case "fp8":
            tile = (1, in_features) if variant == "rows" else (_FP8_TILE, _FP8_TILE)
            return _fp8_weight(generator, out_features, in_features, tile)
        case "int8":
            return _int8_weight(generator, out_features, in_features, int(variant or _GROUP))
        case "int4":
            order = torch.randperm(in_features, generator=generator) if variant == "permuted" else None
            return _int4_weight(generator, out_features, in_features, 128 if variant == "128" else _GROUP, order)
    dtype: torch.dtype = getattr(torch, layout)
    return DenseWeight((in_features**-0.5 * numbers(generator, out_features, in_features)).to(dtype))


def moved(value: Tensors, device: torch.device) -> Tensors:
    """Return a copy of a weight or a step whose tensors are on the device."""
    tensors: dict[str, Any] = {  # Any: replace checks each field against its own type
        field.name: content.to(device)
        for field in dataclasses.fields(value)
        if isinstance(content := getattr(value, field.name), Tensor)
    }
    return dataclasses.replace(value, **tensors)


def paged(chunks: Sequence[Chunk], seed: int = 0) -> Paged:
    """Return a step over blocks that lie in no order; blocks that nobody uses lie among them."""
    counts = [-(-chunk.length // BLOCK_SIZE) for chunk in chunks]
    num_blocks = sum(counts) + 3
    free = list(range(num_blocks))
    random.Random(seed).shuffle(free)
    tables = [[free.pop() for _ in range(count)] for count in counts]
    whole = [Chunk(chunk.length, chunk.length) for chunk in chunks]
    return Paged(_step(chunks, tables), _step(whole, tables), num_blocks)


def empty_cache(
    ops: Ops, num_kv_heads: int, head_dim: int, num_blocks: int, dtype: torch.dtype, device: torch.device
) -> LayerKVCache:
    """Return a layer's paged memory in which every slot poisons what reads it before it is written."""
    spec = KVCacheSpec(kind=LayerKind.FULL, num_kv_heads=num_kv_heads, head_dim=head_dim)
    shapes = ops.kv_cache_shape(spec, num_blocks, BLOCK_SIZE)
    key, value = (torch.full(shape, torch.nan, device=device).to(dtype) for shape in shapes)
    return LayerKVCache(key, value)


def _fp8_weight(generator: torch.Generator, out_features: int, in_features: int, tile: tuple[int, int]) -> Fp8Weight:
    tiles = (-(-out_features // tile[0]), -(-in_features // tile[1]))
    return Fp8Weight(
        codes=numbers(generator, out_features, in_features).clamp(-8, 8).to(torch.float8_e4m3fn),
        scale=in_features**-0.5 * (0.5 + torch.rand(tiles, generator=generator)),
        tile_rows=tile[0],
        tile_columns=tile[1],
    )


def _int8_weight(generator: torch.Generator, out_features: int, in_features: int, group_size: int) -> Int8Weight:
    codes = torch.randint(-128, 128, (out_features, in_features), generator=generator, dtype=torch.int8)
    scale = _group_scales(generator, out_features, in_features, group_size) / 64
    minimum = 16 * _group_scales(generator, out_features, in_features, group_size) / 64
    return Int8Weight(codes, scale.to(torch.float16), minimum.to(torch.float16) if group_size != _GROUP else None)


def _int4_weight(
    generator: torch.Generator, out_features: int, in_features: int, group_size: int, order: Tensor | None
) -> Int4Weight:
    num_groups = in_features // _GROUP
    packed = torch.randint(0, 256, (out_features, num_groups * _GROUP // 2), generator=generator, dtype=torch.uint8)
    # As of larger groups' formats, whose scales are repeated.
    scale = _group_scales(generator, out_features, in_features, group_size) / 4
    scale = scale.repeat_interleave(group_size // _GROUP, dim=1)[:, :num_groups].to(torch.float16)
    minimum = (-7.5 * scale.float()).to(torch.float16)
    permutation = None if order is None else order.to(torch.int32)
    return Int4Weight(packed, scale, minimum, num_channels=in_features, permutation=permutation)


def _group_scales(generator: torch.Generator, out_features: int, in_features: int, group_size: int) -> Tensor:
    """Return what keeps products of the size of what they multiply, once codes are as large as 1."""
    scales = 0.5 + torch.rand(out_features, -(-in_features // group_size), generator=generator)
    return scales.mul_(in_features**-0.5)


def _step(chunks: Sequence[Chunk], tables: Sequence[Sequence[int]]) -> ForwardMetadata:
    positions: list[int] = []
    slots: list[int] = []
    query_start_loc = [0]
    block_tables = torch.zeros(len(chunks), max(map(len, tables)), dtype=torch.int32)
    for row, (chunk, table) in enumerate(zip(chunks, tables, strict=True)):
        block_tables[row, : len(table)] = torch.tensor(table, dtype=torch.int32)
        own = range(chunk.length - chunk.num_tokens, chunk.length)
        positions += own
        slots += [table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE for position in own]
        query_start_loc.append(query_start_loc[-1] + chunk.num_tokens)
    return ForwardMetadata(
        positions=torch.tensor(positions),
        slot_mapping=torch.tensor(slots),
        block_tables=block_tables,
        query_start_loc=torch.tensor(query_start_loc, dtype=torch.int32),
        seq_lens=torch.tensor([chunk.length for chunk in chunks], dtype=torch.int32),
        logits_indices=torch.arange(len(positions)),
        block_size=BLOCK_SIZE,
        max_query_len=max(chunk.num_tokens for chunk in chunks),
        max_seq_len=max(chunk.length for chunk in chunks),
    )
