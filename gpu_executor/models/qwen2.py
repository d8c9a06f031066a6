"""Qwen2 and Qwen2.5: Llama with biases on the query, key and value projections; layers that ask for it have a window.

Source: Yang et al. 2024 (arXiv 2407.10671).
"""

from __future__ import annotations

from .llama import LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Qwen2 and Qwen2.5, dense."""

    has_qkv_bias = True
    has_output_bias = False
