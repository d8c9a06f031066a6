"""The grouped method: matrices as near to their stored form as the canonical layouts are.

Blocks of 4 and 8 bits stay blocks of 4 and 8 bits, fp8 numbers fp8 numbers, 16-bit matrices 16-bit ones. A fused weight
whose shards are stored alike is one matrix; shards of different forms (some files keep the value projection in more
bits) are stacked.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from ..formats.checkpoint_tensor import CheckpointTensor
from ..kernels.layouts import DenseWeight, Fp8Weight, Int4Weight, Int8Weight, LinearWeight, StackedWeight
from ..kernels.ops import Ops
from .base import LinearShape, QuantMethod, WeightLoader


class GroupedMethod(QuantMethod):
    """Keep weights at their stored size.

    Shards are read and joined in the host's memory, a weight at a time; the backend brings them to its device when it
    prepares them.
    """

    def create_weights(self, shape: LinearShape, *, dtype: torch.dtype | None, device: torch.device) -> WeightLoader:
        return GroupedLoader(shape, self._ops, self._preparing, dtype)


class GroupedLoader(WeightLoader):
    """Reads each shard in its own layout and puts them together at the end."""

    def __init__(self, shape: LinearShape, ops: Ops, preparing: threading.Lock, dtype: torch.dtype | None) -> None:
        super().__init__(shape, ops, preparing)
        self._dtype = dtype
        self._shards: dict[int, LinearWeight] = {}

    def loaded_bytes(self, tensor: CheckpointTensor) -> int:
        return tensor.matrix_bytes(self._dtype, self._ops.max_scale_group)

    def _read_rows(self, first_row: int, tensor: CheckpointTensor) -> None:
        self._shards[first_row] = tensor.read_matrix(self._dtype)

    def _assemble(self) -> LinearWeight:
        shards = [self._shards.pop(first_row) for first_row in sorted(self._shards)]
        return stack_rows(shards, self._bias)


def stack_rows(shards: Sequence[LinearWeight], bias: Tensor | None) -> LinearWeight:
    """Return one weight of the rows of all shards, neighbours of the same layout joined.

    Args:
        shards: dense, grouped and fp8 weights without biases, of the same in_features.
        bias: [rows of all shards] float32, or None.
    """
    parts: list[LinearWeight] = []
    first_row = 0
    for _, run in itertools.groupby(shards, key=_layout_of):
        alike = list(run)
        last_row = first_row + sum(shard.out_features for shard in alike)
        parts.append(_join(alike, None if bias is None else bias[first_row:last_row]))
        first_row = last_row
    return parts[0] if len(parts) == 1 else StackedWeight(tuple(parts))


def _layout_of(weight: LinearWeight) -> tuple[object, ...]:
    """What must be equal for two weights to be rows of one."""
    match weight:
        case DenseWeight():
            return (DenseWeight, weight.weight.dtype)
        case Int4Weight():
            return (Int4Weight, _order_of(weight.permutation))
        case Int8Weight():
            return (Int8Weight, weight.group_size, weight.minimum is None, _order_of(weight.permutation))
        case Fp8Weight() if weight.tile_columns < weight.in_features:
            # A tile's rows are counted from the first row on: a shard that ends within a tile can't be followed.
            ends_within = weight.out_features % weight.tile_rows != 0
            return (Fp8Weight, weight.tile_rows, weight.tile_columns, id(weight) if ends_within else None)
    return (type(weight),)


def _order_of(permutation: Tensor | None) -> bytes | None:
    return None if permutation is None else permutation.numpy().tobytes()


def _join(shards: Sequence[LinearWeight], bias: Tensor | None) -> LinearWeight:
    match shards[0]:
        case DenseWeight():
            return DenseWeight(_cat([shard.weight for shard in shards if isinstance(shard, DenseWeight)]), bias)
        case Int4Weight() as first:
            int4 = [shard for shard in shards if isinstance(shard, Int4Weight)]
            return Int4Weight(
                codes=_cat([shard.codes for shard in int4]),
                scale=_cat([shard.scale for shard in int4]),
                minimum=_cat([shard.minimum for shard in int4]),
                num_channels=first.num_channels,
                bias=bias,
                permutation=first.permutation,
            )
        case Int8Weight() as first:
            int8 = [shard for shard in shards if isinstance(shard, Int8Weight)]
            minima = [shard.minimum for shard in int8 if shard.minimum is not None]
            return Int8Weight(
                codes=_cat([shard.codes for shard in int8]),
                scale=_cat([shard.scale for shard in int8]),
                minimum=_cat(minima) if minima else None,
                bias=bias,
                permutation=first.permutation,
            )
        case Fp8Weight() as first:
            return _join_fp8(first, [shard for shard in shards if isinstance(shard, Fp8Weight)], bias)
    raise TypeError(f"a checkpoint tensor is never read as a {type(shards[0]).__name__}")


def _join_fp8(first: Fp8Weight, shards: list[Fp8Weight], bias: Tensor | None) -> Fp8Weight:
    """Join tile by tile; where a shard's rows share one scale, each row gets it."""
    codes = _cat([shard.codes.view(torch.uint8) for shard in shards]).view(first.codes.dtype)
    if len(shards) == 1 or first.tile_columns < first.in_features:
        scale = _cat([shard.scale for shard in shards])
        return Fp8Weight(codes, scale, first.tile_rows, first.tile_columns, bias)
    scales = [shard.scale.repeat_interleave(shard.tile_rows, dim=0)[: shard.out_features] for shard in shards]
    return Fp8Weight(codes, _cat(scales), 1, first.tile_columns, bias)


def _cat(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
