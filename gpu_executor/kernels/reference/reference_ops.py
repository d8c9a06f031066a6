"""The reference backend: plain torch on any device, and the oracle of every other backend's tests."""

from __future__ import annotations

import torch
from torch import Tensor

from ...batch.forward_metadata import ForwardMetadata
from ...kv_cache_spec import LayerKVCache
from ..layouts import LinearWeight, RotaryTable
from ..ops import Ops
from . import activation, attention, linear, normalization, rotary
from . import kv_cache as kv
from .attention_plan import AttentionPlan, TileShape, plan_attention


class ReferenceOps(Ops):
    """Each op in a few lines of torch, with the order of every reduction fixed."""

    name = "reference"

    def __init__(self) -> None:
        # All layers of a step attend by the same plan: those of the last step are kept.
        self._planned_metadata: ForwardMetadata | None = None
        self._plans: dict[tuple[TileShape, int | None], AttentionPlan] = {}

    def embedding(self, input_ids: Tensor, weight: LinearWeight, dtype: torch.dtype) -> Tensor:
        return linear.embedding(input_ids, weight, dtype)

    def linear(self, x: Tensor, weight: LinearWeight) -> Tensor:
        return linear.linear(x, weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return normalization.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return normalization.add_rms_norm(x, residual, weight, eps)

    def rotary(self, query: Tensor, key: Tensor, positions: Tensor, table: RotaryTable) -> tuple[Tensor, Tensor]:
        return rotary.rotary(query, key, positions, table)

    def store_kv(self, key: Tensor, value: Tensor, kv_cache: LayerKVCache, slot_mapping: Tensor) -> None:
        kv.store_kv(key, value, kv_cache, slot_mapping)

    def paged_attention(
        self,
        query: Tensor,
        kv_cache: LayerKVCache,
        metadata: ForwardMetadata,
        *,
        scale: float,
        sliding_window: int | None,
        soft_cap: float | None = None,
    ) -> Tensor:
        shape = TileShape.of(num_heads=query.shape[1], num_kv_heads=kv_cache.key.shape[1])
        plan = self._plan(metadata, shape, sliding_window)
        return attention.paged_attention(query, kv_cache, plan, scale, soft_cap)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        return activation.silu_and_mul(gate_up)

    def gelu_tanh_and_mul(self, gate_up: Tensor) -> Tensor:
        return activation.gelu_tanh_and_mul(gate_up)

    def copy_blocks(
        self, kv_cache: LayerKVCache, source: Tensor, destination: Tensor, *, is_disjoint: bool = False
    ) -> None:
        kv.copy_blocks(kv_cache, source, destination)

    def _plan(self, metadata: ForwardMetadata, shape: TileShape, sliding_window: int | None) -> AttentionPlan:
        if metadata is not self._planned_metadata:
            self._planned_metadata, self._plans = metadata, {}
        key = (shape, sliding_window)
        if key not in self._plans:
            self._plans[key] = plan_attention(metadata, shape, sliding_window)
        return self._plans[key]
