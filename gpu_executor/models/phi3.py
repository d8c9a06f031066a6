"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama without biases, whose checkpoints hold the projections stacked.

    q, k, v  = split(W_qkv norm(h));      h = h + W_o attention(rotate(q), rotate(k), v)
    gate, up = split(W_gate_up norm(h));  h = h + W_down (silu(gate) * up)

Some attend over a sliding window, some rotate a part of each head's channels alone (Phi-4-mini), and those of 128k
tokens rotate by "longrope" factors: all three come from the configuration.

Source: Abdin et al. 2024 (arXiv 2404.14219, arXiv 2412.08905); Abouelenin et al. 2025 (arXiv 2503.01743).
"""

from __future__ import annotations

from pagewire.checkpoint.model_config import ModelConfig

from ..kernels.layouts import RotaryTable
from ..layers.attention import Attention
from ..layers.build_context import BuildContext
from ..layers.mlp import MLP
from .llama import LlamaForCausalLM, layer_name


class Phi3ForCausalLM(LlamaForCausalLM):
    """The dense text models of the family."""

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
            has_fused_qkv=True,
            context=context,
        )

    def build_mlp(self, config: ModelConfig, layer_index: int, context: BuildContext) -> MLP:
        """Build one layer's feed-forward block."""
        return MLP(layer_name(layer_index), config, context, has_fused_gate_up=True)
