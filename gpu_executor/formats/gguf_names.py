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
# Where a family's layers differ.
_FAMILY_LAYER_NAMES = {
    "Gemma2ForCausalLM": _GEMMA_LAYER_NAMES,
    "Gemma3ForCausalLM": _GEMMA_LAYER_NAMES,
    "Phi3ForCausalLM": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
}
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<module>\w+)\.(?P<kind>weight|bias)")


def canonical_name(gguf_name: str, architecture: str) -> str | None:
    """Return the canonical name of a GGUF tensor, None if the tables have none for it.

    Args:
        gguf_name: as the file spells it.
        architecture: of the model, `ModelConfig.architecture`.
    """
    match = _NAME.fullmatch(gguf_name)
    if match is None:
        return None
    layer = match["layer"]
    names = _MODEL_NAMES if layer is None else _LAYER_NAMES | _FAMILY_LAYER_NAMES.get(architecture, {})
    module = names.get(match["module"])
    if module is None:
        return None
    prefix = "" if layer is None else f"model.layers.{layer}."
    return f"{prefix}{module}.{match['kind']}"
