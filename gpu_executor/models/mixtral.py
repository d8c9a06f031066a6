"""Mixtral: Mistral with a mixture of experts in place of each feed-forward block.

    p = softmax(router(norm(h)));  the best few of p, made to add up to 1, are the weights of their experts
    h = h + sum of weight_e * expert_e(norm(h))        over a token's experts, in their order

Source: Jiang et al. 2024 (arXiv 2401.04088).
"""

from __future__ import annotations

from ..layers.mixture import MixtureNames
from .llama import LlamaForCausalLM


class MixtralForCausalLM(LlamaForCausalLM):
    """Mixtral 8x7B and 8x22B."""

    has_qkv_bias = False
    has_output_bias = False
    mixture_names = MixtureNames(module="block_sparse_moe", gate="w1", up="w3", down="w2")
