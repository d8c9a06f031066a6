"""The backend of compiled CPU kernels: what `--kernels cpu` runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...batch.forward_metadata import ForwardMetadata
from ...kv_cache_spec import KVCacheShape, KVCacheSpec, LayerKVCache
from ...parallel.shared_memory_group import SharedMemoryGroup
from ..draws import DrawRow, OutputRows, RowLogprobs
from ..expert_choice import ExpertChoice
from ..layouts import DecoderWeights, LinearWeight, RotaryTable
from ..ops import Ops
from ..reference.kv_cache import copy_blocks
from .engine import NativeEngine
from .native_decoder import NativeDecoder
from .native_sampling import NativeSampling
from .packed_weight import PackedWeight, pack_weight
from .step_views import address, view_cache, view_step


class CpuOps(Ops):
    """Each op is one call into the native library, and a step's whole decoder is one.

    Args:
        num_threads: that a call runs on.
        instruction_set: "auto", or the name of one.

    Raises:
        LibraryMissing: there is no compiled library.
        ConfigError: this build or this CPU lacks the instruction set.
        MachineError: the library was made from other sources than those beside it.
    """

    name = "cpu"
    keeps_quantized_weights = True
    has_float32_activations = True
    has_own_threads = True

    def __init__(self, num_threads: int, instruction_set: str = "auto") -> None:
        self.engine = NativeEngine(num_threads, instruction_set)
        self._sampling = NativeSampling(self.engine.library, self.engine.handle)
        # One a model, found by the identity of its weights, which the decoder keeps alive.
        self._decoders: dict[int, NativeDecoder] = {}

    def describe(self) -> str:
        return f"cpu ({self.engine.instruction_set}, {self.engine.num_threads} threads)"

    def prepare_weight(self, weight: LinearWeight) -> LinearWeight:
        return pack_weight(self.engine, weight)

    def kv_cache_shape(self, spec: KVCacheSpec, num_blocks: int, block_size: int) -> KVCacheShape:
        # A vector holds one channel of neighbouring keys: csrc/kernels/attention.h.
        return KVCacheShape(
            key=(num_blocks, spec.num_kv_heads, spec.head_dim, block_size),
            value=(num_blocks, spec.num_kv_heads, block_size, spec.head_dim),
        )

    def embedding(self, input_ids: Tensor, weight: LinearWeight, dtype: torch.dtype) -> Tensor:
        packed, ids = self._packed(weight), input_ids.contiguous()
        out = torch.empty(ids.shape[0], packed.in_features)
        self.engine.call("pagewire_embedding", packed.view, ids.data_ptr(), ids.shape[0], out.data_ptr())
        return out.to(dtype)

    def linear(self, x: Tensor, weight: LinearWeight) -> Tensor:
        packed, x = self._packed(weight), x.contiguous()
        out = torch.empty(x.shape[0], packed.out_features)
        self.engine.call("pagewire_linear", packed.view, address(x), x.shape[0], out.data_ptr())
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x, weight = x.contiguous(), weight.float()
        out, size = torch.empty_like(x), weight.shape[0]
        self.engine.call(
            "pagewire_rms_norm", address(x), None, address(weight), x.numel() // size, size, eps, None, out.data_ptr()
        )
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x, residual, weight = x.contiguous(), residual.contiguous(), weight.float()
        out, total = torch.empty_like(x), torch.empty_like(x)
        self.engine.call(
            "pagewire_rms_norm", address(x), address(residual), address(weight), *x.shape, eps, total.data_ptr(),
            out.data_ptr(),
        )  # fmt: skip
        return out, total

    def rotary(self, query: Tensor, key: Tensor, positions: Tensor, table: RotaryTable) -> tuple[Tensor, Tensor]:
        return self._rotate(query, positions, table), self._rotate(key, positions, table)

    def store_kv(self, key: Tensor, value: Tensor, kv_cache: LayerKVCache, slot_mapping: Tensor) -> None:
        key, value = key.contiguous(), value.contiguous()
        self.engine.call(
            "pagewire_store_kv", address(key), address(value), slot_mapping.data_ptr(), *key.shape, view_cache(kv_cache)
        )

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
        query = query.contiguous()
        out = torch.empty_like(query)
        _, num_heads, head_dim = query.shape
        self.engine.call(
            "pagewire_paged_attention", view_step(metadata), view_cache(kv_cache), num_heads, kv_cache.key.shape[1],
            head_dim, sliding_window or 0, scale, soft_cap or 0.0, address(query), out.data_ptr(),
        )  # fmt: skip
        return out

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        return self._gate("pagewire_silu_and_mul", gate_up)

    def gelu_tanh_and_mul(self, gate_up: Tensor) -> Tensor:
        return self._gate("pagewire_gelu_tanh_and_mul", gate_up)

    def choose_experts(self, logits: Tensor, num_chosen: int, *, is_renormalized: bool) -> ExpertChoice:
        logits = logits.contiguous()
        num_tokens, num_experts = logits.shape
        ids = torch.empty(num_tokens, num_chosen, dtype=torch.int32)
        weights = torch.empty(num_tokens, num_chosen)
        self.engine.call(
            "pagewire_choose_experts", address(logits), num_tokens, num_experts, num_chosen, is_renormalized,
            ids.data_ptr(), weights.data_ptr(),
        )  # fmt: skip
        return ExpertChoice(ids.long(), weights)

    def copy_blocks(
        self, kv_cache: LayerKVCache, source: Tensor, destination: Tensor, *, is_disjoint: bool = False
    ) -> None:
        copy_blocks(kv_cache, source, destination)

    def decoder(
        self,
        input_ids: Tensor,
        weights: DecoderWeights,
        kv_caches: Sequence[LayerKVCache],
        metadata: ForwardMetadata,
        stream: Tensor | None = None,
    ) -> Tensor:
        shared = self.ranks if isinstance(self.ranks, SharedMemoryGroup) else None
        if shared is None and self.ranks.size > 1:  # the native call knows ranks by the memory that they share
            return super().decoder(input_ids, weights, kv_caches, metadata, stream)
        decoder = self._decoders.get(id(weights))
        if decoder is None or decoder.kv_caches is not kv_caches:
            decoder = self._decoders[id(weights)] = NativeDecoder(self.engine, weights, kv_caches, shared)
        return decoder.run(input_ids, metadata, stream)

    def output_layer(
        self, hidden: Tensor, weight: LinearWeight, num_drawable: int, kept_rows: Sequence[int]
    ) -> OutputRows:
        packed = self._packed(weight)
        return self._sampling.output_layer(hidden.contiguous(), packed.view, num_drawable, kept_rows)

    def argmax(self, row: Tensor) -> tuple[float, int]:
        return self._sampling.argmax(row.contiguous())

    def draw(self, rows: Sequence[DrawRow]) -> list[list[int]]:
        return self._sampling.draw(rows)

    def logprobs(self, logits: Tensor, token_ids: Sequence[int], num_top: int) -> RowLogprobs:
        return self._sampling.logprobs(logits.contiguous(), token_ids, num_top)

    def _packed(self, weight: LinearWeight) -> PackedWeight:
        # Layers hold what `prepare_weight` made; a weight that comes otherwise is packed for this call.
        return pack_weight(self.engine, weight)

    def _gate(self, function: str, gate_up: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(num_rows, size)
        self.engine.call(function, address(gate_up), num_rows, size, out.data_ptr())
        return out

    def _rotate(self, heads: Tensor, positions: Tensor, table: RotaryTable) -> Tensor:
        rotated = heads.clone(memory_format=torch.contiguous_format)
        self.engine.call(
            "pagewire_rotary", address(rotated), positions.data_ptr(), *rotated.shape, table.rotary_dim,
            address(table.cos), address(table.sin),
        )  # fmt: skip
        return rotated
