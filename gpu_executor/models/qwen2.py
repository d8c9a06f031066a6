"""Qwen2 and Qwen2.5: Llama with biases on the query, key and value projections; layers that ask for it have a window.

Source: Yang et al. 2024 (arXiv 2407.10671).
"""

from __future__ import annotations

from pagewire.checkpoint.model_config import ModelConfig

from ..kernels.layouts import RotaryTable
from ..layers.attention import Attention
from ..layers.build_context import BuildContext
from .llama import LlamaForCausalLM, layer_name


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Qwen2 and Qwen2.5, dense."""

    def build_attention(
        self, config: ModelConfig, layer_index: int, rotary: RotaryTable, context: BuildContext
    ) -> Attention:
        """Build one layer's attention."""
        return Attention(
            layer_name(layer_index),
            config,
            layer_index,
            rotary,
            qkv_bias=True,
            output_bias=False,
            qk_norm=False,
            context=context,
        )
