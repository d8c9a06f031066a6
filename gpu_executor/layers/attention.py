"""Multi-head attention with grouped queries, rotary positions and a paged KV cache."""

from __future__ import annotations

from collections.abc import Iterator

from pagewire.checkpoint.model_config import LayerKind, ModelConfig

from ..kernels.layouts import AttentionWeights, RotaryTable
from ..kv_cache_spec import KVCacheSpec
from .build_context import BuildContext
from .linear import FusedLinear, Linear, Shard
from .rms_norm import RMSNorm
from .weight_target import WeightTarget


class Attention:
    """norm -> query, key, value -> (head norms) -> rotation -> KV store -> paged attention -> output.

    Args:
        prefix: canonical name of the decoder layer ("model.layers.0").
        config: sizes, epsilon, kind of each layer.
        layer_index: which layer this is.
        rotary: the model's table.
        qkv_bias: the query, key and value projections have biases.
        output_bias: the output projection has one.
        qk_norm: each query and key head passes an RMSNorm before its rotation.
        context: ops, quantization method, dtype and device.
    """

    def __init__(
        self,
        prefix: str,
        config: ModelConfig,
        layer_index: int,
        rotary: RotaryTable,
        *,
        qkv_bias: bool,
        output_bias: bool,
        qk_norm: bool,
        context: BuildContext,
    ) -> None:
        self._config = config
        self._kind = config.layer_kinds[layer_index]
        self._rotary = rotary
        name, head_dim, eps = f"{prefix}.self_attn", config.head_dim, config.rms_norm_eps
        query_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim
        self.norm = RMSNorm(f"{prefix}.input_layernorm", config.hidden_size, eps, context)
        self.qkv = FusedLinear(
            name,
            (Shard("q_proj", query_size), Shard("k_proj", kv_size), Shard("v_proj", kv_size)),
            config.hidden_size,
            has_bias=qkv_bias,
            context=context,
        )
        self.output = Linear(name, "o_proj", config.hidden_size, query_size, has_bias=output_bias, context=context)
        self.query_norm = RMSNorm(f"{name}.q_norm", head_dim, eps, context) if qk_norm else None
        self.key_norm = RMSNorm(f"{name}.k_norm", head_dim, eps, context) if qk_norm else None

    @property
    def kv_cache_spec(self) -> KVCacheSpec:
        """The paged memory that this layer needs."""
        return KVCacheSpec(
            kind=self._kind,
            num_kv_heads=self._config.num_kv_heads,
            head_dim=self._config.head_dim,
            sliding_window=self._sliding_window,
        )

    @property
    def _sliding_window(self) -> int | None:
        return self._config.sliding_window if self._kind is LayerKind.SLIDING else None

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield what the checkpoint must hold for this block."""
        yield from self.norm.weight_targets()
        yield from self.qkv.weight_targets()
        yield from self.output.weight_targets()
        for norm in (self.query_norm, self.key_norm):
            if norm is not None:
                yield from norm.weight_targets()

    def weights(self) -> AttentionWeights:
        """Gather the loaded parameters for the kernels: `Ops.attention_block` runs them."""
        config = self._config
        return AttentionWeights(
            norm=self.norm.weight,
            norm_eps=self.norm.eps,
            qkv=self.qkv.weight,
            output=self.output.weight,
            query_norm=self.query_norm.weight if self.query_norm else None,
            key_norm=self.key_norm.weight if self.key_norm else None,
            rotary=self._rotary,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            sliding_window=self._sliding_window,
        )
