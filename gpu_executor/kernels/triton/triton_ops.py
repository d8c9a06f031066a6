"""The backend of Triton kernels: what `--kernels triton` runs, on GPUs; on a CPU they are interpreted, for tests."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...batch.forward_metadata import ForwardMetadata
from ...kv_cache_spec import LayerKVCache
from ..attention_backends.select import select_attention
from ..compilation_watch import CompilationWatch
from ..expert_choice import ExpertChoice
from ..layouts import DenseWeight, LinearWeight, MixtureWeights, RotaryTable
from ..low_rank import TokensOfChange
from ..ops import Ops
from .activation import gelu_tanh_and_mul, silu_and_mul
from .compile_hooks import watch_compilations
from .copy_blocks import copy_blocks
from .embedding import embedding
from .mixture.adapters import GroupedAdapters
from .mixture.choose import choose_experts
from .mixture.experts import GroupedExperts, group_experts
from .packed_weight import MAX_SCALE_GROUP, PackedWeight
from .paged_attention import paged_attention
from .products import multiply, prepare_weight
from .rms_norm import add_rms_norm, rms_norm
from .rotary import rotary
from .store_kv import store_kv
from .triton_sampling import TritonSampling

logger = logging.getLogger(__name__)


class _Mixture(NamedTuple):
    """A mixture's weights, which live as long as what was made of them; None: its experts are computed one by one."""

    weights: MixtureWeights
    grouped: GroupedExperts | None


class TritonOps(TritonSampling, Ops):
    """Each op is one launch, or a few.

    Args:
        device: where weights and activations are: a GPU, or a CPU if Triton interprets.
        is_batch_invariant: a token's bits must not depend on what shares its step: products run in fixed tiles.
        attention_backend: "triton", or what else computes attention.
    """

    name = "triton"
    keeps_quantized_weights = True
    draws_on_device = True
    pads_ranks = True
    max_scale_group = MAX_SCALE_GROUP

    def __init__(self, device: torch.device, *, is_batch_invariant: bool, attention_backend: str) -> None:
        self._device = device
        self._is_batch_invariant = is_batch_invariant
        self._attention = select_attention(attention_backend, device)
        self._mixtures: dict[int, _Mixture] = {}
        self._adapters = GroupedAdapters(is_batch_invariant=is_batch_invariant)
        # Other backends plan their work on the host, by the lengths of a step's requests.
        self.can_be_captured = self._attention is None

    def watch_compilations(self, watch: CompilationWatch) -> None:
        watch_compilations(watch)

    def prepare_weight(self, weight: LinearWeight) -> LinearWeight:
        return prepare_weight(weight, self._device)

    def embedding(self, input_ids: Tensor, weight: LinearWeight, dtype: torch.dtype) -> Tensor:
        match weight:
            case DenseWeight():
                return F.embedding(input_ids, weight.weight).to(dtype)
            case PackedWeight():
                return embedding(input_ids, weight, dtype)
        raise TypeError(f"rows can't be looked up in a {type(weight).__name__}")

    def linear(self, x: Tensor, weight: LinearWeight) -> Tensor:
        return multiply(x, weight, is_batch_invariant=self._is_batch_invariant)

    def changed_linear(self, x: Tensor, weight: LinearWeight, changes: Sequence[TokensOfChange]) -> Tensor:
        y = self.linear(x, weight)
        if changes:
            self._adapters.add(x, y, changes)
        return y

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, weight, eps)

    def rotary(self, query: Tensor, key: Tensor, positions: Tensor, table: RotaryTable) -> tuple[Tensor, Tensor]:
        return rotary(query, key, positions, table)

    def store_kv(self, key: Tensor, value: Tensor, kv_cache: LayerKVCache, slot_mapping: Tensor) -> None:
        store_kv(key, value, kv_cache, slot_mapping)

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
        if self._attention is not None:
            return self._attention.attend(
                query, kv_cache, metadata, scale=scale, sliding_window=sliding_window, soft_cap=soft_cap
            )
        return paged_attention(
            query,
            kv_cache,
            metadata,
            scale=scale,
            sliding_window=sliding_window,
            soft_cap=soft_cap,
            is_batch_invariant=self._is_batch_invariant,
        )

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        return silu_and_mul(gate_up)

    def gelu_tanh_and_mul(self, gate_up: Tensor) -> Tensor:
        return gelu_tanh_and_mul(gate_up)

    def choose_experts(self, logits: Tensor, num_chosen: int, *, is_renormalized: bool) -> ExpertChoice:
        return choose_experts(logits, num_chosen, is_renormalized=is_renormalized)

    def experts(self, x: Tensor, choice: ExpertChoice, weights: MixtureWeights) -> Tensor:
        mixture = self._mixtures.get(id(weights))
        if mixture is None:
            mixture = self._mixtures[id(weights)] = _Mixture(weights, _group_experts(weights))
        if mixture.grouped is None or x.shape[0] == 0:
            return self._experts_of_all_tokens(x, choice, weights)
        return mixture.grouped.run(
            x,
            choice,
            lambda gate_up: self._put_through(gate_up, weights.activation),
            is_batch_invariant=self._is_batch_invariant,
        )

    def _experts_of_all_tokens(self, x: Tensor, choice: ExpertChoice, weights: MixtureWeights) -> Tensor:
        """Compute every token by every expert, and add those that it chose: slow, and without a wait for the device."""
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for index, expert in enumerate(weights.experts, weights.first_expert):
            gated = self._put_through(self.linear(x, expert.gate_up), weights.activation)
            is_here = choice.expert_ids == index
            share = choice.weights.masked_fill(~is_here, 0).sum(dim=1, keepdim=True)  # one of them is not zero
            added = self.linear(gated, expert.down).float() * share
            total += added.masked_fill(~is_here.any(dim=1, keepdim=True), 0)
        return total.to(x.dtype)

    def copy_blocks(
        self, kv_cache: LayerKVCache, source: Tensor, destination: Tensor, *, is_disjoint: bool = False
    ) -> None:
        copy_blocks(kv_cache, source, destination, is_disjoint=is_disjoint)


def _group_experts(weights: MixtureWeights) -> GroupedExperts | None:
    if not weights.experts:
        return None
    grouped = group_experts(weights)
    if grouped is None:
        logger.warning(
            "experts of a layer are packed in different ways, or with channels in another order (act-order): each is "
            "computed by itself for all tokens, which is slow; a checkpoint without act-order is not"
        )
    return grouped
