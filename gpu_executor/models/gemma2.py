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

from .llama import LlamaForCausalLM


class Gemma2ForCausalLM(LlamaForCausalLM):
    """Gemma 2 of all sizes."""

    attention_post_norm = "post_attention_layernorm"
    mlp_norm = "pre_feedforward_layernorm"
    mlp_post_norm = "post_feedforward_layernorm"
