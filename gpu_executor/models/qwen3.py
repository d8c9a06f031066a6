"""Qwen3: Llama with an RMSNorm over each query and key head before its rotation, in place of Qwen2's biases.

Source: Yang et al. 2025 (arXiv 2505.09388).
"""

from __future__ import annotations

from pagewire.checkpoint.model_config import ModelConfig

from ..kernels.layouts import RotaryTable
from ..layers.attention import Attention
from ..layers.build_context import BuildContext
from .llama import LlamaForCausalLM, layer_name


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Qwen3, dense."""

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
            context=context,
        )
