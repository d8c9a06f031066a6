from __future__ import annotations

import pytest

from pagewire.gpu_executor.formats.gguf_names import canonical_name


@pytest.mark.parametrize(
    ("gguf_name", "name"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.11.attn_q.bias", "model.layers.11.self_attn.q_proj.bias"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("blk.3.attn_k_norm.weight", "model.layers.3.self_attn.k_norm.weight"),
        ("blk.3.attn_sinks.weight", None),
        ("attn_q.weight", None),
        ("blk.3.token_embd.weight", None),
    ],
)
def test_names_are_looked_up_in_one_table(gguf_name: str, name: str | None) -> None:
    assert canonical_name(gguf_name, "LlamaForCausalLM") == name


def test_stacked_projections_of_phi3_have_names_of_their_own() -> None:
    assert canonical_name("blk.0.attn_qkv.weight", "Phi3ForCausalLM") == "model.layers.0.self_attn.qkv_proj.weight"
    assert canonical_name("blk.0.attn_qkv.weight", "LlamaForCausalLM") is None
    assert canonical_name("blk.0.ffn_up.weight", "Phi3ForCausalLM") == "model.layers.0.mlp.gate_up_proj.weight"
    assert canonical_name("blk.0.ffn_up.weight", "LlamaForCausalLM") == "model.layers.0.mlp.up_proj.weight"
    assert canonical_name("rope_factors_long.weight", "Phi3ForCausalLM") == "rope_factors_long.weight"


def test_norms_of_gemma_have_names_of_their_own() -> None:
    def module(gguf_name: str, architecture: str = "Gemma3ForCausalLM") -> str | None:
        return canonical_name(f"blk.0.{gguf_name}.weight", architecture)

    assert module("post_attention_norm") == "model.layers.0.post_attention_layernorm.weight"
    assert module("ffn_norm") == "model.layers.0.pre_feedforward_layernorm.weight"
    assert module("post_ffw_norm") == "model.layers.0.post_feedforward_layernorm.weight"
    assert module("post_ffw_norm", "LlamaForCausalLM") is None
