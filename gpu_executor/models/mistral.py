"""Mistral: Llama without biases, whose layers attend over a sliding window (the first releases) or fully (later ones).

Source: Jiang et al. 2023 (arXiv 2310.06825).
"""

from __future__ import annotations

from .llama import LlamaForCausalLM


class MistralForCausalLM(LlamaForCausalLM):
    """Mistral 7B and its successors. The window of each layer comes from the configuration."""

    has_qkv_bias = False
    has_output_bias = False
