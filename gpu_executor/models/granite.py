"""Granite 3, dense: Llama with four multipliers, so that one set of training settings fits every size.

    h = embedding_scale * embed(ids)
    h = h + residual_scale * attention(norm(h));  h = h + residual_scale * mlp(norm(h))        for each layer
    logits = logit_scale * output(norm(h))

Attention logits are multiplied by attention_scale in place of 1 / sqrt(head_dim). Biases, where there are any, are
those of Llama. All of it comes from the configuration, and the layers take it from there.

Source: Granite Team, IBM 2024, "Granite 3.0 Language Models"; the multipliers are those of Yang et al. 2022
(arXiv 2203.03466).
"""

from __future__ import annotations

from .llama import LlamaForCausalLM


class GraniteForCausalLM(LlamaForCausalLM):
    """The dense models of the family. Every layer is Llama's."""
