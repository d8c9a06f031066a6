"""Linear layers, whole or fused of several projections of the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.layouts import LinearWeight
from ..quantization.base import LinearShape
from .build_context import BuildContext
from .weight_target import WeightTarget


@dataclass(frozen=True, slots=True)
class Shard:
    """One projection of the checkpoint: the name of its module and its output channels."""

    shard_id: str
    out_features: int


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
        self._shape = LinearShape(sum(shard.out_features for shard in shards), in_features, has_bias)
        self._loader = context.quant_method.create_weights(
            self._shape, dtype=context.weight_dtype, device=context.device
        )

    @property
    def weight(self) -> LinearWeight:
        """The loaded weight, as kernels want it."""
        return self._loader.weight

    @property
    def modules(self) -> tuple[str, ...]:
        """Canonical names of the projections."""
        return tuple(f"{self._prefix}.{shard.shard_id}" for shard in self.shards)

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield what the checkpoint must hold for this layer."""
        first_row = 0
        for shard in self.shards:
            yield from self._shard_targets(shard, first_row)
            first_row += shard.out_features

    def _shard_targets(self, shard: Shard, first_row: int) -> Iterator[WeightTarget]:
        loader, name = self._loader, f"{self._prefix}.{shard.shard_id}"
        yield WeightTarget(
            name=f"{name}.weight",
            shape=(shard.out_features, self._shape.in_features),
            load=lambda tensor: loader.load_rows(first_row, tensor),
            loaded_bytes=loader.loaded_bytes,
        )
        if self._shape.has_bias:
            yield WeightTarget(
                name=f"{name}.bias",
                shape=(shard.out_features,),
                load=lambda tensor: loader.load_bias(first_row, tensor),
                loaded_bytes=lambda tensor: torch.float32.itemsize * shard.out_features,
            )

    def forward(self, x: Tensor) -> Tensor:
        """Multiply [num_rows, in_features] to [num_rows, out_features of all shards]."""
        return self._context.quant_method.apply(self.weight, x)


class Linear(FusedLinear):
    """y = x W^T + b, one projection of the checkpoint.

    Args:
        prefix: canonical name of the module that holds it.
        name: its own name there.
        out_features: channels of y.
        in_features: channels of x.
        has_bias: whether b is there.
        context: ops, quantization method, dtype and device.
    """

    def __init__(
        self, prefix: str, name: str, out_features: int, in_features: int, *, has_bias: bool, context: BuildContext
    ) -> None:
        super().__init__(prefix, (Shard(name, out_features),), in_features, has_bias=has_bias, context=context)
