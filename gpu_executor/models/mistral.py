"""Mistral: Llama without biases, whose layers attend over a sliding window (the first releases) or fully (later ones).

Source: Jiang et al. 2023 (arXiv 2310.06825).
"""

from __future__ import annotations

from pagewire.checkpoint.model_config import ModelConfig

from ..kernels.layouts import RotaryTable
from ..layers.attention import Attention
from ..layers.build_context import BuildContext
from .llama import LlamaForCausalLM, layer_name


class MistralForCausalLM(LlamaForCausalLM):
    """Mistral 7B and its successors. The window of each layer comes from the configuration."""

    def build_attention(
        self, config: ModelConfig, layer_index: int, rotary: RotaryTable, context: BuildContext
    ) -> Attention:
        """Build one layer's attention."""
        return Attention(
            layer_name(layer_index),
            config,
            layer_index,
            rotary,
            qkv_bias=False,
            output_bias=False,
            qk_norm=False,
            context=context,
        )
