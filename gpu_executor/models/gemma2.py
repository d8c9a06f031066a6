"""Gemma 2: Llama with a norm after each block too, bounded logits, and layers that attend to a window every other time.

    h = embedding_scale * embed(ids)
    h = h + norm(attention(norm(h)));  h = h + norm(mlp(norm(h)))        for each layer
    logits = cap(output(norm(h)))

where cap(x) = bound * tanh(x / bound), within attention on its logits too. The gate passes a GELU. Checkpoints hold the
weights of norms less 1, and one matrix for the embedding and the output. Bounds, scales, windows and that 1 come from
the configuration.

Source: Gemma Team, Google 2024 (arXiv 2408.00118).
"""

from __future__ import annotations

from pagewire.checkpoint.model_config import ModelConfig

from ..kernels.layouts import RotaryTable
from ..layers.attention import Attention
from ..layers.build_context import BuildContext
from ..layers.mlp import MLP
from .llama import LlamaForCausalLM, layer_name


class Gemma2ForCausalLM(LlamaForCausalLM):
    """Gemma 2 of all sizes."""

    def build_attention(
        self, config: ModelConfig, layer_index: int, rotary: RotaryTable, context: BuildContext
    ) -> Attention:
        """Build one layer's attention."""
        return Attention(
            layer_name(layer_index),
            config,
            layer_index,
            rotary,
            qkv_bias=config.qkv_bias,
            output_bias=config.output_bias,
            qk_norm=False,
            post_norm="post_attention_layernorm",
            context=context,
        )

    def build_mlp(self, config: ModelConfig, layer_index: int, context: BuildContext) -> MLP:
        """Build one layer's feed-forward block."""
        return MLP(
            layer_name(layer_index),
            config,
            context,
            norm="pre_feedforward_layernorm",
            post_norm="post_feedforward_layernorm",
        )
