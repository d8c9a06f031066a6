"""GGUF tensor names -> the canonical names, in one table, and what a family has of its own."""

from __future__ import annotations

import re

_MODEL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "rope_freqs": "rope_freqs",
    "rope_factors_long": "rope_factors_long",
    "rope_factors_short": "rope_factors_short",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERT_NAMES = {
    "ffn_gate": "mlp.experts.{}.gate_proj",
    "ffn_up": "mlp.experts.{}.up_proj",
    "ffn_down": "mlp.experts.{}.down_proj",
}
_MIXTRAL_EXPERT_NAMES = {
    "ffn_gate": "block_sparse_moe.experts.{}.w1",
    "ffn_up": "block_sparse_moe.experts.{}.w3",
    "ffn_down": "block_sparse_moe.experts.{}.w2",
}
_FAMILY_EXPERT_NAMES = {"MixtralForCausalLM": _MIXTRAL_EXPERT_NAMES, "Qwen3MoeForCausalLM": _EXPERT_NAMES}
# Where a family's layers differ.
_FAMILY_LAYER_NAMES = {
    "Gemma2ForCausalLM": _GEMMA_LAYER_NAMES,
    "Gemma3ForCausalLM": _GEMMA_LAYER_NAMES,
    "MixtralForCausalLM": {"ffn_gate_inp": "block_sparse_moe.gate"},
    "Phi3ForCausalLM": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "Qwen3MoeForCausalLM": {"ffn_gate_inp": "mlp.gate"},
}
# Files from before 2024 have a tensor an expert.
_EXPERT_NAME = re.compile(r"blk\.(?P<layer>\d+)\.(?P<module>\w+)\.(?P<expert>\d+)\.weight")
_STACK_NAME = re.compile(r"blk\.(?P<layer>\d+)\.(?P<module>\w+)_exps\.weight")
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<module>\w+)\.(?P<kind>weight|bias)")


def canonical_name(gguf_name: str, architecture: str) -> str | None:
    """Return the canonical name of a GGUF tensor, None if the tables have none for it.

    Args:
        gguf_name: as the file spells it.
        architecture: of the model, `ModelConfig.architecture`.
    """
    match = _NAME.fullmatch(gguf_name)
    if match is None:
        return _expert_name(gguf_name, architecture)
    layer = match["layer"]
    names = _MODEL_NAMES if layer is None else _LAYER_NAMES | _FAMILY_LAYER_NAMES.get(architecture, {})
    module = names.get(match["module"])
    if module is None:
        return None
    prefix = "" if layer is None else f"model.layers.{layer}."
    return f"{prefix}{module}.{match['kind']}"


def stacked_names(gguf_name: str, architecture: str, num_experts: int) -> list[str] | None:
    """Return the canonical names of the experts' matrices that lie in one tensor, None if it is no such stack."""
    match = _STACK_NAME.fullmatch(gguf_name)
    name = _FAMILY_EXPERT_NAMES.get(architecture, {}).get(match["module"]) if match is not None else None
    if match is None or name is None:
        return None
    return [f"model.layers.{match['layer']}.{name.format(expert)}.weight" for expert in range(num_experts)]


def _expert_name(gguf_name: str, architecture: str) -> str | None:
    match = _EXPERT_NAME.fullmatch(gguf_name)
    name = _FAMILY_EXPERT_NAMES.get(architecture, {}).get(match["module"]) if match is not None else None
    return (
        None
        if match is None or name is None
        else f"model.layers.{match['layer']}.{name.format(match['expert'])}.weight"
    )
