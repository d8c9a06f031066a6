"""Multi-head attention with grouped queries, rotary positions and a paged KV cache."""

from __future__ import annotations

from collections.abc import Iterator

from pagewire.checkpoint.model_config import LayerKind, ModelConfig

from ..kernels.layouts import AttentionWeights, RotaryTable
from ..kv_cache_spec import KVCacheSpec
from ..parallel.share import Share
from .build_context import BuildContext
from .kv_scales import KVScalesLoader
from .linear import FusedLinear, RowParallelLinear, Shard
from .rms_norm import RMSNorm
from .weight_target import WeightTarget


class Attention:
    """norm -> query, key, value -> (head norms) -> rotation -> KV store -> paged attention -> output -> (norm).

    Ranks divide the query heads, and the KV heads that those read; with more ranks than KV heads, neighbours hold the
    same one. The number of query heads a KV head serves stays what it is, or falls.

    Args:
        prefix: canonical name of the decoder layer ("model.layers.0").
        config: sizes, epsilon, kind of each layer.
        layer_index: which layer this is.
        qkv_bias: the query, key and value projections have biases.
        output_bias: the output projection has one.
        qk_norm: each query and key head passes an RMSNorm before its rotation.
        has_fused_qkv: the checkpoint holds the three projections as one, `qkv_proj`.
        post_norm: name of the module in the layer that norms the block's output; None: there is none.
        context: ops, quantization method, dtype, device and this rank's share.

    Attributes:
        kind: what the layer's tokens see.
    """

    def __init__(
        self,
        prefix: str,
        config: ModelConfig,
        layer_index: int,
        *,
        qkv_bias: bool,
        output_bias: bool,
        qk_norm: bool,
        has_fused_qkv: bool = False,
        post_norm: str | None = None,
        context: BuildContext,
    ) -> None:
        self._config = config
        self.kind = config.layer_kinds[layer_index]
        self._num_heads = len(context.share.of(config.num_heads))
        self._num_kv_heads = len(context.share.of_repeated(config.num_kv_heads))
        name, head_dim, hidden_size = f"{prefix}.self_attn", config.head_dim, config.hidden_size
        query_size = config.num_heads * head_dim
        self.norm = RMSNorm(f"{prefix}.input_layernorm", hidden_size, config, context)
        shards = _qkv_shards(config, context.share, is_fused=has_fused_qkv)
        self.qkv = FusedLinear(name, shards, hidden_size, has_bias=qkv_bias, context=context)
        self.output = RowParallelLinear(name, "o_proj", hidden_size, query_size, has_bias=output_bias, context=context)
        self.query_norm = RMSNorm(f"{name}.q_norm", head_dim, config, context) if qk_norm else None
        self.key_norm = RMSNorm(f"{name}.k_norm", head_dim, config, context) if qk_norm else None
        self.kv_scales_loader = KVScalesLoader(name)
        self.post_norm = RMSNorm(f"{prefix}.{post_norm}", hidden_size, config, context) if post_norm else None

    @property
    def kv_cache_spec(self) -> KVCacheSpec:
        """The paged memory that this layer needs on this rank."""
        return KVCacheSpec(
            kind=self.kind,
            num_kv_heads=self._num_kv_heads,
            head_dim=self._config.head_dim,
            sliding_window=self._sliding_window,
        )

    @property
    def _sliding_window(self) -> int | None:
        return self._config.sliding_window if self.kind is LayerKind.SLIDING else None

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield what the checkpoint must hold for this block."""
        yield from self.norm.weight_targets()
        yield from self.qkv.weight_targets()
        yield from self.output.weight_targets()
        for norm in (self.query_norm, self.key_norm, self.post_norm):
            if norm is not None:
                yield from norm.weight_targets()
        yield from self.kv_scales_loader.weight_targets()

    def weights(self, rotary: RotaryTable) -> AttentionWeights:
        """Gather the loaded parameters for the kernels: `Ops.attention_block` runs them.

        Args:
            rotary: the model's table for this kind of layer.
        """
        config = self._config
        return AttentionWeights(
            norm=self.norm.weight,
            norm_eps=self.norm.eps,
            qkv=self.qkv.weight,
            output=self.output.weight,
            query_norm=self.query_norm.weight if self.query_norm else None,
            key_norm=self.key_norm.weight if self.key_norm else None,
            rotary=rotary,
            num_heads=self._num_heads,
            num_kv_heads=self._num_kv_heads,
            head_dim=config.head_dim,
            scale=config.attention_scale or config.head_dim**-0.5,
            sliding_window=self._sliding_window,
            soft_cap=config.attention_soft_cap,
            post_norm=self.post_norm.weight if self.post_norm else None,
            output_scale=config.residual_scale,
        )


def _qkv_shards(config: ModelConfig, share: Share, *, is_fused: bool) -> tuple[Shard, ...]:
    """The query, key and value rows that a rank holds: of three projections, or of one that stacks them."""
    query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    queries = _channels(share.of(config.num_heads), config.head_dim)
    keys = _channels(share.of_repeated(config.num_kv_heads), config.head_dim)
    if not is_fused:
        return (
            Shard("q_proj", query_size, (queries,)),
            Shard("k_proj", kv_size, (keys,)),
            Shard("v_proj", kv_size, (keys,)),
        )
    runs = (queries, _moved(keys, query_size), _moved(keys, query_size + kv_size))
    return (Shard("qkv_proj", query_size + 2 * kv_size, runs),)


def _channels(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)


def _moved(rows: range, by: int) -> range:
    return range(rows.start + by, rows.stop + by)
