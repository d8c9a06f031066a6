"""GGUF tensor names -> the canonical names, in one table."""

from __future__ import annotations

import re

_MODEL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "rope_freqs": "rope_freqs",
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
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<module>\w+)\.(?P<kind>weight|bias)")


def canonical_name(gguf_name: str) -> str | None:
    """Return the canonical name of a GGUF tensor, None if the table has none for it."""
    match = _NAME.fullmatch(gguf_name)
    if match is None:
        return None
    layer = match["layer"]
    module = (_MODEL_NAMES if layer is None else _LAYER_NAMES).get(match["module"])
    if module is None:
        return None
    prefix = "" if layer is None else f"model.layers.{layer}."
    return f"{prefix}{module}.{match['kind']}"
