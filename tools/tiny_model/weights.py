"""Random weights by their Hugging Face names, scaled so that the logits have about unit variance.

Small logits would hide errors: every comparison by tolerance relies on values of the size that real models have.
"""

from __future__ import annotations

import math

import torch

from tools.tiny_model.spec import TinyModelSpec

EMBEDDING = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"


def make_weights(spec: TinyModelSpec) -> dict[str, torch.Tensor]:
    """Return fp32 weights, in the order in which a checkpoint lists them. Depends on the spec's shape and seed only."""
    # Gemma stores the weights of norms less 1.
    source = _Source(spec.seed, norm_center=0.0 if spec.is_gemma else 1.0)
    hidden, heads, kv_heads, head_dim = spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim
    # The residual stream ends at unit size in the final norm, so rows of length 1 give logits of variance 1.
    weights = {EMBEDDING: source.matrix(spec.vocab_size, hidden)}
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        weights[f"{prefix}.input_layernorm.weight"] = source.norm(hidden)
        qkv_rows = {"q": heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * head_dim}
        for name, rows in ({"qkv": sum(qkv_rows.values())} if spec.has_fused_projections else qkv_rows).items():
            weights[f"{attention}.{name}_proj.weight"] = source.matrix(rows, hidden)
            if spec.has_qkv_bias:
                weights[f"{attention}.{name}_proj.bias"] = source.bias(rows)
        if spec.has_qk_norm:
            weights[f"{attention}.q_norm.weight"] = source.norm(head_dim)
            weights[f"{attention}.k_norm.weight"] = source.norm(head_dim)
        weights[f"{attention}.o_proj.weight"] = source.matrix(hidden, heads * head_dim)
        if spec.has_output_bias:
            weights[f"{attention}.o_proj.bias"] = source.bias(hidden)
        weights[f"{prefix}.post_attention_layernorm.weight"] = source.norm(hidden)
        if spec.is_gemma:
            weights[f"{prefix}.pre_feedforward_layernorm.weight"] = source.norm(hidden)
        if layer in spec.mixture_layers:
            weights |= _mixture_weights(spec, prefix, source)
            continue
        gate_up_rows = {"gate": spec.mlp_size, "up": spec.mlp_size}
        if spec.has_fused_projections:
            gate_up_rows = {"gate_up": 2 * spec.mlp_size}
        shapes = [(name, rows, hidden) for name, rows in gate_up_rows.items()]
        for name, rows, columns in (*shapes, ("down", hidden, spec.mlp_size)):
            weights[f"{mlp}.{name}_proj.weight"] = source.matrix(rows, columns)
            if spec.has_mlp_bias:
                weights[f"{mlp}.{name}_proj.bias"] = source.bias(rows)
        if spec.is_gemma:
            weights[f"{prefix}.post_feedforward_layernorm.weight"] = source.norm(hidden)
    weights["model.norm.weight"] = source.norm(hidden)
    if not spec.tie_word_embeddings:
        weights[OUTPUT] = source.matrix(spec.vocab_size, hidden)
    # Logits are divided by this.
    weights[EMBEDDING if spec.tie_word_embeddings else OUTPUT] *= spec.logits_scaling
    return weights


def _mixture_weights(spec: TinyModelSpec, prefix: str, source: _Source) -> dict[str, torch.Tensor]:
    module, names = f"{prefix}.mlp", ("gate_proj", "up_proj", "down_proj")
    if spec.family == "mixtral":
        module, names = f"{prefix}.block_sparse_moe", ("w1", "w3", "w2")
    hidden, size = spec.hidden_size, spec.expert_mlp_size
    # Logits of the router that differ by more than a little: a wrong choice shows.
    weights = {f"{module}.gate.weight": 2 * source.matrix(spec.num_experts, hidden)}
    for expert in range(spec.num_experts):
        for name, rows, columns in zip(names, (size, size, hidden), (hidden, hidden, size), strict=True):
            weights[f"{module}.experts.{expert}.{name}.weight"] = source.matrix(rows, columns)
    return weights


class _Source:
    def __init__(self, seed: int, *, norm_center: float) -> None:
        self._norm_center = norm_center
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=self._generator) / math.sqrt(columns)

    def norm(self, size: int) -> torch.Tensor:
        # Away from the center, so that a norm that is left out or applied twice changes the result.
        return self._norm_center + 0.2 * torch.randn(size, generator=self._generator)

    def bias(self, size: int) -> torch.Tensor:
        return 0.3 * torch.randn(size, generator=self._generator)
