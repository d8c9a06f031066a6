"""Qwen3: Llama with an RMSNorm over each query and key head before its rotation, in place of Qwen2's biases.

Source: Yang et al. 2025 (arXiv 2505.09388).
"""

from __future__ import annotations

from .llama import LlamaForCausalLM


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Qwen3, dense."""

    has_qk_norm = True
