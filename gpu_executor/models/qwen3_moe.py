"""Qwen3's mixtures of experts: Qwen3 with many small experts in place of the feed-forward blocks, or of most of them.

Source: Yang et al. 2025 (arXiv 2505.09388).
"""

from __future__ import annotations

from .llama import LlamaForCausalLM


class Qwen3MoeForCausalLM(LlamaForCausalLM):
    """Qwen3-30B-A3B, 235B-A22B and their kind. Which layers have experts comes from the configuration."""

    has_qk_norm = True
