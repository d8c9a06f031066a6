"""Gemma 3, the text model: Gemma 2 with norms on each query and key head, which took the place of the bounds.

Five layers of six attend to a window and rotate by a base of their own; the sixth attends fully, and only its rotation
is stretched for long contexts. All of that comes from the configuration.

Source: Gemma Team, Google 2025 (arXiv 2503.19786).
"""

from __future__ import annotations

from pagewire.checkpoint.model_config import ModelConfig

from ..kernels.layouts import RotaryTable
from ..layers.attention import Attention
from ..layers.build_context import BuildContext
from .gemma2 import Gemma2ForCausalLM
from .llama import layer_name


class Gemma3ForCausalLM(Gemma2ForCausalLM):
    """Gemma 3 of all sizes, without images."""

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
            qk_norm=True,
            post_norm="post_attention_layernorm",
            context=context,
        )
