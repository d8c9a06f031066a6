"""Linear layers, whole or fused of several projections of the checkpoint, each rank with its part of the channels.

A block of two products needs to hear of other ranks only once: the first divides its output channels (`FusedLinear`),
so that each rank computes heads or gates of its own; the second divides its input channels (`RowParallelLinear`), and
what the ranks give is added up (`Ops.attention_block`, `Ops.mlp_block`).

Source: Shoeybi et al. 2019, "Megatron-LM" (arXiv 1909.08053), section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..formats.tensor_part import WHOLE_TENSOR, TensorPart
from ..kernels.layouts import LinearWeight
from ..quantization.base import LinearShape
from .build_context import BuildContext
from .weight_target import WeightTarget


@dataclass(frozen=True, slots=True)
class Shard:
    """One projection of the checkpoint.

    Attributes:
        shard_id: the name of its module.
        out_features: its output channels, of all ranks.
        rows: those that this rank holds, as ascending runs, none empty; None: all.
    """

    shard_id: str
    out_features: int
    rows: tuple[range, ...] | None = None

    @property
    def num_rows(self) -> int:
        """Output channels that this rank holds."""
        return self.out_features if self.rows is None else sum(len(run) for run in self.rows)

    @property
    def part(self) -> TensorPart:
        """What this rank reads of the projection's tensors."""
        return WHOLE_TENSOR if self.num_rows == self.out_features else TensorPart(rows=self.rows)


@dataclass(frozen=True, slots=True)
class AdaptedProjection:
    """One projection of the checkpoint as an adapter changes it: B A is added to its weight.

    Attributes:
        module: its canonical name.
        out_features, in_features: of all ranks.
        part_of_a: what this rank reads of A [rank, in_features].
        part_of_b: what it reads of B [out_features, rank].
        first_row: where its rows begin among those of the layer here.
    """

    module: str
    out_features: int
    in_features: int
    part_of_a: TensorPart = WHOLE_TENSOR
    part_of_b: TensorPart = WHOLE_TENSOR
    first_row: int = 0


class FusedLinear:
    """y = x W^T + b, where W stacks the rows of several projections that share their input.

    One product over the stack is faster than one a projection. Each shard has its own tensors in the checkpoint, and
    is loaded into its own rows.

    Args:
        prefix: canonical name of the module that holds the projections ("model.layers.0.self_attn").
        shards: the projections, in the order of their rows.
        in_features: channels of x.
        has_bias: every shard has one, or none.
        context: ops, quantization method, dtype and device.
    """

    def __init__(
        self, prefix: str, shards: tuple[Shard, ...], in_features: int, *, has_bias: bool, context: BuildContext
    ) -> None:
        self.shards = shards
        self._prefix = prefix
        self._context = context
        self._in_features = in_features
        self._has_bias = has_bias
        self._loader = context.quant_method.create_weights(
            LinearShape(sum(shard.num_rows for shard in shards), in_features, has_bias),
            dtype=context.weight_dtype,
            device=context.device,
        )

    @property
    def weight(self) -> LinearWeight:
        """The loaded weight, as kernels want it."""
        return self._loader.weight

    @property
    def modules(self) -> tuple[str, ...]:
        """Canonical names of the projections."""
        return tuple(f"{self._prefix}.{shard.shard_id}" for shard in self.shards)

    @property
    def adapted(self) -> tuple[AdaptedProjection, ...]:
        """What adapters may change of it."""
        first_row, projections = 0, []
        for shard, module in zip(self.shards, self.modules, strict=True):
            projections.append(
                AdaptedProjection(
                    module, shard.out_features, self._in_features, part_of_b=shard.part, first_row=first_row
                )
            )
            first_row += shard.num_rows
        return tuple(projections)

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield what the checkpoint must hold for this layer."""
        first_row = 0
        for shard in self.shards:
            yield from self._shard_targets(shard, first_row)
            first_row += shard.num_rows

    def _shard_targets(self, shard: Shard, first_row: int) -> Iterator[WeightTarget]:
        loader, name = self._loader, f"{self._prefix}.{shard.shard_id}"
        yield WeightTarget(
            name=f"{name}.weight",
            shape=(shard.out_features, self._in_features),
            load=lambda tensor: loader.load_rows(first_row, tensor),
            loaded_bytes=loader.loaded_bytes,
            part=shard.part,
            is_elsewhere=self._context.is_elsewhere,
        )
        if self._has_bias:
            yield WeightTarget(
                name=f"{name}.bias",
                shape=(shard.out_features,),
                load=lambda tensor: loader.load_bias(first_row, tensor),
                loaded_bytes=lambda tensor: torch.float32.itemsize * shard.num_rows,
                part=shard.part,
                is_elsewhere=self._context.is_elsewhere,
            )

    def forward(self, x: Tensor) -> Tensor:
        """Multiply [num_rows, in_features] to [num_rows, this rank's channels of all shards]."""
        return self._context.quant_method.apply(self.weight, x)


class RowParallelLinear:
    """y = x W^T + b, one projection of the checkpoint, whose input channels the ranks divide: each gives a summand.

    The bias is in the first rank's.

    Args:
        prefix: canonical name of the module that holds it.
        name: its own name there.
        out_features: channels of y.
        in_features: channels of x, of all ranks.
        has_bias: whether b is there.
        context: ops, quantization method, dtype, device and this rank's share.
    """

    def __init__(
        self, prefix: str, name: str, out_features: int, in_features: int, *, has_bias: bool, context: BuildContext
    ) -> None:
        self._module = f"{prefix}.{name}"
        self._context = context
        self._shape = (out_features, in_features)
        self._columns = context.share.of(in_features)
        self._has_bias = has_bias
        self._loader = context.quant_method.create_weights(
            LinearShape(out_features, len(self._columns), has_bias and context.share.is_first),
            dtype=context.weight_dtype,
            device=context.device,
        )

    @property
    def weight(self) -> LinearWeight:
        """The loaded weight, as kernels want it."""
        return self._loader.weight

    @property
    def modules(self) -> tuple[str, ...]:
        """Canonical name of the projection."""
        return (self._module,)

    @property
    def adapted(self) -> tuple[AdaptedProjection, ...]:
        """What adapters may change of it."""
        out_features, in_features = self._shape
        is_whole = len(self._columns) == in_features
        part_of_a = WHOLE_TENSOR if is_whole else TensorPart(columns=self._columns)
        return (AdaptedProjection(self._module, out_features, in_features, part_of_a=part_of_a),)

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield what the checkpoint must hold for this layer."""
        context, loader, (out_features, in_features) = self._context, self._loader, self._shape
        is_whole = len(self._columns) == in_features
        yield WeightTarget(
            name=f"{self._module}.weight",
            shape=self._shape,
            load=lambda tensor: loader.load_rows(0, tensor),
            loaded_bytes=loader.loaded_bytes,
            part=WHOLE_TENSOR if is_whole else TensorPart(columns=self._columns),
            is_elsewhere=context.is_elsewhere,
        )
        if self._has_bias:
            yield WeightTarget(
                name=f"{self._module}.bias",
                shape=(out_features,),
                load=lambda tensor: loader.load_bias(0, tensor),
                loaded_bytes=lambda tensor: torch.float32.itemsize * out_features,
                is_elsewhere=context.is_elsewhere or not context.share.is_first,
            )
