from __future__ import annotations

import pytest

from pagewire.gpu_executor.formats.gguf_names import canonical_name, stacked_names


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


@pytest.mark.parametrize(
    ("architecture", "router", "down"),
    [
        ("MixtralForCausalLM", "block_sparse_moe.gate", "block_sparse_moe.experts.{}.w2"),
        ("Qwen3MoeForCausalLM", "mlp.gate", "mlp.experts.{}.down_proj"),
    ],
)
def test_experts_lie_in_one_tensor_or_in_one_each(architecture: str, router: str, down: str) -> None:
    assert canonical_name("blk.4.ffn_gate_inp.weight", architecture) == f"model.layers.4.{router}.weight"
    names = [f"model.layers.4.{down.format(expert)}.weight" for expert in range(3)]
    assert stacked_names("blk.4.ffn_down_exps.weight", architecture, 3) == names
    assert canonical_name("blk.4.ffn_down.2.weight", architecture) == names[2]
    assert stacked_names("blk.4.ffn_down.weight", architecture, 3) is None
    assert stacked_names("blk.4.attn_q_exps.weight", architecture, 3) is None
    assert canonical_name("blk.4.attn_q.2.weight", architecture) is None


def test_models_without_experts_have_no_names_for_them() -> None:
    assert canonical_name("blk.0.ffn_gate_inp.weight", "LlamaForCausalLM") is None
    assert canonical_name("blk.0.ffn_up.0.weight", "LlamaForCausalLM") is None
    assert stacked_names("blk.0.ffn_up_exps.weight", "LlamaForCausalLM", 4) is None
