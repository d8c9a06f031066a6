"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama without biases, whose checkpoints hold the projections stacked.

    q, k, v  = split(W_qkv norm(h));      h = h + W_o attention(rotate(q), rotate(k), v)
    gate, up = split(W_gate_up norm(h));  h = h + W_down (silu(gate) * up)

Some attend over a sliding window, some rotate a part of each head's channels alone (Phi-4-mini), and those of 128k
tokens rotate by "longrope" factors: all three come from the configuration.

Source: Abdin et al. 2024 (arXiv 2404.14219, arXiv 2412.08905); Abouelenin et al. 2025 (arXiv 2503.01743).
"""

from __future__ import annotations

from .llama import LlamaForCausalLM


class Phi3ForCausalLM(LlamaForCausalLM):
    """The dense text models of the family."""

    has_qkv_bias = False
    has_output_bias = False
    has_fused_projections = True
