"""The small ops: what every backend must write, one signature each.

Every op keeps rows apart: a token's result has the same bits whatever other tokens share the call, however its
request was cut into chunks, and whatever lies in KV blocks that are not its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ..batch.forward_metadata import ForwardMetadata
from ..kv_cache_spec import KVCacheShape, KVCacheSpec, LayerKVCache
from .compilation_watch import CompilationWatch
from .layouts import GROUP_SIZE, LinearWeight, RotaryTable
from .sampling_ops import SamplingOps


class SmallOps(SamplingOps, ABC):
    """One backend's kernels.

    Attributes:
        name: what `select_ops` calls it.
        keeps_quantized_weights: products take the grouped 4-bit and 8-bit layouts; otherwise loaders unpack them.
        has_float32_activations: activations are float32, whatever the weights are stored in; otherwise they have the
            dtype of the dense weights.
        has_own_threads: ops run on a pool of their own, and torch's threads would only fight it for the cores.
        draws_on_device: no op waits for the device, so that steps can be launched before those before them are done;
            tokens are drawn there, and the next step takes them from there.
        max_scale_group: input channels of which a prepared 4-bit or 8-bit weight keeps a scale once where it is alike;
            scales of larger groups are repeated. A weight's size depends on it.
        pads_ranks: the changes that adapters make of one weight have the same number of ranks, whatever the adapters'
            own: so a launch can take those of several.
        can_be_captured: what an op launches follows from shapes and host numbers alone, never from what tensors hold,
            so that a CUDA graph may keep it.
    """

    name: str
    keeps_quantized_weights: bool = False
    has_float32_activations: bool = False
    has_own_threads: bool = False
    draws_on_device: bool = False
    max_scale_group: int = GROUP_SIZE
    pads_ranks: bool = False
    can_be_captured: bool = False

    def describe(self) -> str:
        """Return what runs the ops, for people."""
        return self.name

    def watch_compilations(self, watch: CompilationWatch) -> None:
        """Have kernels told that are compiled from now on; by default none is, all were before the start.

        Args:
            watch: is told, in place of whoever was told before.
        """

    def prepare_weight(self, weight: LinearWeight) -> LinearWeight:
        """Bring a weight into the order in which this backend's products read it.

        Called once a weight, when all of it is loaded, by one thread at a time (not always the same). The canonical
        weight is dropped afterwards.

        Args:
            weight: any canonical layout.

        Returns:
            A weight that this backend's `linear` and `embedding` take: by default, the canonical one.
        """
        return weight

    def kv_cache_shape(self, spec: KVCacheSpec, num_blocks: int, block_size: int) -> KVCacheShape:
        """Return the shapes of a layer's paged memory, in the order that this backend keeps keys and values in.

        The first dimension is the block; only `store_kv`, `paged_attention` and `decoder` know the others.
        """
        shape = (num_blocks, spec.num_kv_heads, block_size, spec.head_dim)
        return KVCacheShape(key=shape, value=shape)

    @abstractmethod
    def embedding(self, input_ids: Tensor, weight: LinearWeight, dtype: torch.dtype) -> Tensor:
        """Look up one row for each token.

        Args:
            input_ids: [num_tokens] int64, each below the weight's rows.
            weight: vocab_size rows of hidden_size channels.
            dtype: the compute dtype, which a quantized weight does not tell.

        Returns:
            [num_tokens, hidden_size], of that dtype.
        """

    @abstractmethod
    def linear(self, x: Tensor, weight: LinearWeight) -> Tensor:
        """Multiply each row by a weight matrix and add its bias: x @ weight.T + bias, accumulated in float32.

        Args:
            x: [num_rows, in_features], compute dtype.
            weight: out_features rows of in_features channels, in any canonical layout.

        Returns:
            [num_rows, out_features], x's dtype.
        """

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Scale each row to unit root mean square: x / sqrt(mean(x^2) + eps) * weight, in float32.

        Args:
            x: [..., size], compute dtype; each last-dimension row is normed by itself.
            weight: [size], x's dtype or float32; so are those of the other norms.
            eps: added to the mean square.

        Returns:
            x's shape and dtype.

        Source: Zhang and Sennrich 2019 (arXiv 1910.07467).
        """

    @abstractmethod
    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Add a block's output to the residual stream and norm the sum.

        Args:
            x: [num_tokens, hidden_size], what the block gave.
            residual: like `x`, the stream so far.
            weight: [hidden_size].
            eps: added to the mean square.

        Returns:
            The normed sum, and the sum itself (the new residual).
        """

    @abstractmethod
    def rotary(self, query: Tensor, key: Tensor, positions: Tensor, table: RotaryTable) -> tuple[Tensor, Tensor]:
        """Rotate query and key heads by their positions; channel i pairs with channel i + rotary_dim / 2.

        Args:
            query: [num_tokens, num_heads, head_dim], compute dtype.
            key: [num_tokens, num_kv_heads, head_dim], compute dtype.
            positions: [num_tokens] int64, each below the table's length.
            table: cosines and sines; channels from its rotary_dim on are left as they are.

        Returns:
            The rotated query and key.

        Source: RoFormer, Su et al. 2021 (arXiv 2104.09864).
        """

    @abstractmethod
    def store_kv(self, key: Tensor, value: Tensor, kv_cache: LayerKVCache, slot_mapping: Tensor) -> None:
        """Write each token's key and value into its slot, divided by the cache's scale and rounded to its dtype.

        What is beyond an 8-bit dtype's largest number becomes that number.

        Args:
            key: [num_tokens, num_kv_heads, head_dim], compute dtype; `value` alike.
            value: see `key`.
            kv_cache: the layer's paged memory, written in place.
            slot_mapping: [num_tokens] int64, block_id * block_size + offset; a token of slot -1 is skipped.
        """

    @abstractmethod
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
        """Attend each scheduled token over its request's paged KV cache, decode rows and prefill chunks alike.

        Keys and values are read as the cache stores them, those of this step too: `store_kv` comes first.

        Args:
            query: [num_tokens, num_heads, head_dim], compute dtype; head h reads KV head h // (num_heads /
                num_kv_heads).
            kv_cache: the layer's paged memory, any float dtype; slots that hold none of the request's tokens may
                contain anything, NaN included.
            metadata: block_tables, query_start_loc, seq_lens.
            scale: logit multiplier, mostly 1 / sqrt(head_dim).
            sliding_window: keys a token sees, its own included; None: all before it.
            soft_cap: bound of the scaled logits: soft_cap * tanh(logit / soft_cap); None: unbounded.

        Returns:
            [num_tokens, num_heads, head_dim], query's dtype.

        Source: PagedAttention, Kwon et al. 2023 (arXiv 2309.06180).
        """

    @abstractmethod
    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """Gate one half by the other: silu(gate) * up, in float32.

        Args:
            gate_up: [num_tokens, 2 * intermediate_size], the gate first.

        Returns:
            [num_tokens, intermediate_size], gate_up's dtype.

        Source: SwiGLU, Shazeer 2020 (arXiv 2002.05202).
        """

    @abstractmethod
    def gelu_tanh_and_mul(self, gate_up: Tensor) -> Tensor:
        """Gate one half by the other: gelu(gate) * up, in float32, by the formula with a hyperbolic tangent:
        gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))).

        Args:
            gate_up: [num_tokens, 2 * intermediate_size], the gate first.

        Returns:
            [num_tokens, intermediate_size], gate_up's dtype.

        Source: Hendrycks and Gimpel 2016 (arXiv 1606.08415).
        """

    @abstractmethod
    def copy_blocks(
        self, kv_cache: LayerKVCache, source: Tensor, destination: Tensor, *, is_disjoint: bool = False
    ) -> None:
        """Copy whole KV blocks of one layer; all sources are read before any destination is written.

        Args:
            kv_cache: the layer's paged memory, written in place.
            source: [num_copies] int64 block ids.
            destination: [num_copies] int64 block ids, no two alike.
            is_disjoint: no block is both a source and a destination, so that copies may run in any order.
        """
