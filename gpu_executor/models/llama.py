"""Llama: the dense decoder that most families are a variation of.

    h = embed(ids)
    h = h + attention(norm(h));  h = h + mlp(norm(h))        for each layer
    logits = output(norm(h))

The sums are delayed: each block takes the previous block's output and the residual stream apart, adds and norms them
in one op, and hands its own output on the same way.

Of several ranks, each holds a part of every layer of its stage. What other stages hold is known here by name and shape
alone, so that every rank accounts for all of the checkpoint.

Source: Touvron et al. 2023 (arXiv 2302.13971, arXiv 2307.09288); Dubey et al. 2024 (arXiv 2407.21783).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from torch import Tensor

from pagewire.checkpoint.model_config import ModelConfig
from pagewire.checkpoint.stage_layers import stage_layers

from ..batch.forward_metadata import ForwardMetadata
from ..kernels.draws import OutputRows
from ..kernels.layouts import DecoderLayerWeights, DecoderWeights, LinearWeight, RotaryTable
from ..kv_cache_spec import KVCacheSpec, LayerKVCache
from ..kv_scales import KVScales
from ..layers.adapted_layer import AdaptedLayer
from ..layers.attention import Attention
from ..layers.build_context import BuildContext
from ..layers.embedding import VocabEmbedding
from ..layers.mixture import MixtureBlock, MixtureNames
from ..layers.mlp import MLP
from ..layers.output_layer import OutputLayer
from ..layers.rms_norm import RMSNorm
from ..layers.rotary import build_rotary_table
from ..layers.weight_target import WeightTarget
from ..parallel.share import Share


class LlamaForCausalLM:
    """Llama 1 to 3, and what shares its shape: a family that differs in what follows says so in a class of its own.

    Attributes:
        has_qkv_bias: the query, key and value projections have biases; None: the configuration says.
        has_output_bias: likewise of attention's output projection.
        has_qk_norm: each query and key head passes a norm before its rotation.
        has_fused_projections: checkpoints hold query, key and value as one matrix, and gate and up as another.
        attention_post_norm: name of the module in a layer that norms attention's output; None: there is none.
        mlp_norm: name of the one that norms the feed-forward block's input.
        mlp_post_norm: as `attention_post_norm`, of the feed-forward block.
        mixture_names: what the parts of a mixture of experts are called.

    Args:
        config: the checkpoint's facts.
        context: ops, quantization method, dtype, device, and which part of the model this rank holds.
        max_model_len: the longest context that will be served; the rotary table ends there.
    """

    has_qkv_bias: ClassVar[bool | None] = None
    has_output_bias: ClassVar[bool | None] = None
    has_qk_norm: ClassVar[bool] = False
    has_fused_projections: ClassVar[bool] = False
    attention_post_norm: ClassVar[str | None] = None
    mlp_norm: ClassVar[str] = "post_attention_layernorm"
    mlp_post_norm: ClassVar[str | None] = None
    mixture_names: ClassVar[MixtureNames] = MixtureNames()

    def __init__(self, config: ModelConfig, context: BuildContext, max_model_len: int) -> None:
        self._ops = context.ops
        self._dtype = context.dtype
        self._embedding_scale = config.embedding_scale
        self._weights: DecoderWeights | None = None
        self._stage = context.stage
        self._stage_layers = stage_layers(config, context.stage.size)[context.stage.rank]
        elsewhere = context.elsewhere()
        has_rows = self._stage.is_first or (self._stage.is_last and config.tie_word_embeddings)
        self.embedding = VocabEmbedding(
            "model.embed_tokens", config.vocab_size, config.hidden_size, context if has_rows else elsewhere
        )
        self.layers = [
            self._build_layer(config, index, context if index in self._stage_layers else elsewhere)
            for index in range(config.num_layers)
        ]
        at_end = context if self._stage.is_last else elsewhere
        self.norm = RMSNorm("model.norm", config.hidden_size, config, at_end)
        self.output = OutputLayer("lm_head", self.embedding, config, at_end)
        kinds = sorted({layer.attention.kind for layer in self._layers_here})
        self._rotary = {kind: build_rotary_table(config, max_model_len, context.device, kind) for kind in kinds}

    def _build_layer(self, config: ModelConfig, layer_index: int, context: BuildContext) -> DecoderLayer:
        prefix = f"model.layers.{layer_index}"
        attention = Attention(
            prefix,
            config,
            layer_index,
            qkv_bias=config.qkv_bias if self.has_qkv_bias is None else self.has_qkv_bias,
            output_bias=config.output_bias if self.has_output_bias is None else self.has_output_bias,
            qk_norm=self.has_qk_norm,
            has_fused_qkv=self.has_fused_projections,
            post_norm=self.attention_post_norm,
            context=context,
        )
        if config.mixture is not None and layer_index in config.mixture.layers:
            return DecoderLayer(attention, MixtureBlock(prefix, config, context, names=self.mixture_names))
        mlp = MLP(
            prefix,
            config,
            context,
            has_fused_gate_up=self.has_fused_projections,
            norm=self.mlp_norm,
            post_norm=self.mlp_post_norm,
        )
        return DecoderLayer(attention, mlp)

    @property
    def stage(self) -> Share:
        """See `Model.stage`."""
        return self._stage

    @property
    def stage_layers(self) -> range:
        """See `Model.stage_layers`."""
        return self._stage_layers

    @property
    def _layers_here(self) -> list[DecoderLayer]:
        return self.layers[self._stage_layers.start : self._stage_layers.stop]

    def forward(
        self,
        input_ids: Tensor,
        metadata: ForwardMetadata,
        kv_caches: Sequence[LayerKVCache],
        stream: Tensor | None = None,
    ) -> Tensor:
        """See `Model.forward`."""
        assert self._weights is not None, "weights are loaded before the first step"
        return self._ops.decoder(input_ids, self._weights, kv_caches, metadata, stream)

    def compute_logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """See `Model.compute_logits`."""
        return self.output.forward(hidden, out)

    def choose_tokens(self, hidden: Tensor, num_drawable: int, kept_rows: Sequence[int]) -> OutputRows:
        """See `Model.choose_tokens`."""
        return self.output.choose(hidden, num_drawable, kept_rows)

    def kv_cache_specs(self) -> list[KVCacheSpec]:
        """See `Model.kv_cache_specs`."""
        return [layer.attention.kv_cache_spec for layer in self._layers_here]

    def weight_targets(self) -> Iterator[WeightTarget]:
        """See `Model.weight_targets`."""
        yield from self.embedding.weight_targets()
        for layer in self.layers:
            yield from layer.attention.weight_targets()
            yield from layer.mlp.weight_targets()
        yield from self.norm.weight_targets()
        yield from self.output.weight_targets()

    def linear_modules(self) -> frozenset[str]:
        """See `Model.linear_modules`."""
        names = set(self.output.modules)
        for layer in self.layers:
            names.update(layer.attention.qkv.modules, layer.attention.output.modules, layer.mlp.modules)
        return frozenset(names)

    def linear_weights(self) -> Iterator[tuple[tuple[str, ...], LinearWeight]]:
        """See `Model.linear_weights`."""
        for layer in self._layers_here:
            for linear in (layer.attention.qkv, layer.attention.output, *layer.mlp.linears):
                yield linear.modules, linear.weight

    def adapted_layers(self) -> list[AdaptedLayer]:
        """See `Model.adapted_layers`."""
        return [layer.adapted() for layer in self.layers]

    def kv_scales(self) -> list[KVScales | None]:
        """See `Model.kv_scales`."""
        return [layer.attention.kv_scales_loader.loaded() for layer in self.layers]

    def finish_loading(self) -> None:
        """See `Model.finish_loading`."""
        self._weights = DecoderWeights(
            embedding=self.embedding.weight if self._stage.is_first else None,
            layers=tuple(layer.weights(self._rotary[layer.attention.kind]) for layer in self._layers_here),
            norm=self.norm.weight if self._stage.is_last else None,
            norm_eps=self.norm.eps,
            dtype=self._dtype,
            embedding_scale=self._embedding_scale,
            first_token_id=self.embedding.token_ids.start,
        )


class DecoderLayer:
    """Attention, then the feed-forward block or a mixture of such, each over the normed residual stream."""

    def __init__(self, attention: Attention, mlp: MLP | MixtureBlock) -> None:
        self.attention = attention
        self.mlp = mlp

    def adapted(self) -> AdaptedLayer:
        """Return what adapters may change of it; the experts of a mixture they leave alone."""
        linears = {"qkv": self.attention.qkv.adapted, "output": self.attention.output.adapted}
        if isinstance(self.mlp, MLP):
            linears |= {"gate_up": self.mlp.gate_up.adapted, "down": self.mlp.down.adapted}
        return AdaptedLayer(**linears)

    def weights(self, rotary: RotaryTable) -> DecoderLayerWeights:
        """Gather the loaded parameters for the kernels: `Ops.decoder` runs the layers.

        Args:
            rotary: the model's table for this kind of layer.
        """
        return DecoderLayerWeights(attention=self.attention.weights(rotary), mlp=self.mlp.weights())
