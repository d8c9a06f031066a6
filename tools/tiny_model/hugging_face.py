"""Writes a tiny checkpoint as a Hugging Face directory: config.json, safetensors, tokenizer, generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tools.tiny_model.spec import ARCHITECTURES, TinyModelSpec
from tools.tiny_model.tokenizer import (
    BOS_TOKEN_ID,
    CHAT_TEMPLATE,
    END_OF_TEXT,
    END_OF_TEXT_ID,
    END_OF_TURN,
    EOS_TOKEN_ID,
    START_OF_TURN,
    build_tokenizer,
)
from tools.tiny_model.weights import make_weights

Json = dict[str, Any]  # Any: JSON values


def write_hugging_face(spec: TinyModelSpec, directory: Path, *, weights: dict[str, torch.Tensor] | None = None) -> Path:
    """Write a checkpoint directory, which is made if need be, and return it.

    Args:
        spec: what to write.
        directory: where; files of the same names are replaced.
        weights: by Hugging Face names, any float dtype; None for the spec's random ones.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", config_json(spec))
    _write_json(directory / "generation_config.json", {"bos_token_id": BOS_TOKEN_ID, "eos_token_id": EOS_TOKEN_ID})
    build_tokenizer(spec.family, spec.vocab_size).save(str(directory / "tokenizer.json"))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config(spec))
    dtype: torch.dtype = getattr(torch, spec.dtype)
    source = make_weights(spec) if weights is None else weights
    _write_weights(directory, {name: tensor.to(dtype).contiguous() for name, tensor in source.items()}, spec.num_shards)
    return directory


def config_json(spec: TinyModelSpec) -> Json:
    """Return the content of config.json."""
    config: Json = {
        "architectures": [ARCHITECTURES[spec.family]],
        "model_type": "gemma3_text" if spec.family == "gemma3" else spec.family,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.mlp_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        **_activation_keys(spec),
        "max_position_embeddings": spec.max_position,
        "rms_norm_eps": spec.rms_norm_eps,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "bos_token_id": BOS_TOKEN_ID,
        "eos_token_id": EOS_TOKEN_ID,
        "torch_dtype": spec.dtype,
        **_rope_keys(spec),
        **_window_keys(spec),
    }
    if spec.is_gemma or spec.family in ("granite", "llama", "qwen3", "qwen3_moe"):
        config["attention_bias"] = spec.attention_bias
    if spec.family in ("granite", "llama"):
        config["mlp_bias"] = spec.mlp_bias
    if spec.family == "granite":
        names = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
        config |= {name: getattr(spec, name) for name in names}
    if spec.is_gemma:
        config["query_pre_attn_scalar"] = spec.query_pre_attn_scalar or spec.head_dim
        config["final_logit_softcapping"] = spec.logit_soft_cap
        config["attn_logit_softcapping"] = spec.attention_soft_cap
    if spec.family == "mixtral":
        config |= {"num_local_experts": spec.num_experts, "num_experts_per_tok": spec.num_chosen_experts}
    if spec.family == "qwen3_moe":
        config |= {
            "num_experts": spec.num_experts,
            "num_experts_per_tok": spec.num_chosen_experts,
            "moe_intermediate_size": spec.expert_mlp_size,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": list(spec.dense_layers),
        }
    if spec.family == "phi3":
        config["pad_token_id"] = END_OF_TEXT_ID  # the family's default is beyond a small vocabulary
    return config


def _activation_keys(spec: TinyModelSpec) -> Json:
    return {"hidden_activation": "gelu_pytorch_tanh"} if spec.is_gemma else {"hidden_act": "silu"}


def _rope_keys(spec: TinyModelSpec) -> Json:
    scaling = dict(spec.rope_scaling) if spec.rope_scaling else None
    keys: Json = {}
    if spec.family == "phi3":
        keys["partial_rotary_factor"] = spec.partial_rotary_factor
        if scaling is not None:  # Phi-3 states the trained length beside its scaling
            keys["original_max_position_embeddings"] = scaling.pop("original_max_position_embeddings")
    if spec.family == "gemma3":
        if spec.rope_spelling == "rope_parameters":
            full = {"rope_type": "default", "rope_theta": spec.rope_theta, **(scaling or {})}
            sliding = {"rope_type": "default", "rope_theta": spec.local_rope_theta}
            return {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}
        keys["rope_local_base_freq"] = spec.local_rope_theta
    if spec.rope_spelling == "rope_parameters":
        return keys | {"rope_parameters": {"rope_type": "default", "rope_theta": spec.rope_theta, **(scaling or {})}}
    if scaling is not None and spec.rope_spelling != "rope_type":
        kind = scaling["rope_type"] if spec.rope_spelling == "both" else scaling.pop("rope_type")
        scaling["type"] = kind
    return keys | {"rope_theta": spec.rope_theta, "rope_scaling": scaling}


def _window_keys(spec: TinyModelSpec) -> Json:
    keys: Json = {}
    if spec.family not in ("granite", "llama"):
        keys["sliding_window"] = spec.sliding_window
    if spec.family in ("qwen2", "qwen3", "qwen3_moe"):
        keys["use_sliding_window"] = spec.sliding_window is not None
        keys["max_window_layers"] = spec.max_window_layers
    if spec.sliding_window_pattern is not None:
        keys["sliding_window_pattern"] = spec.sliding_window_pattern
    if spec.is_gemma and spec.sliding_window is None:
        # transformers wants a window though no layer has it.
        keys |= {"sliding_window": spec.max_position, "layer_types": ["full_attention"] * spec.num_layers}
    if spec.layer_types is not None:
        keys["layer_types"] = list(spec.layer_types)
    return keys


def _tokenizer_config(spec: TinyModelSpec) -> Json:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": START_OF_TURN,
        "eos_token": END_OF_TURN,
        "unk_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": spec.max_position,
        "chat_template": CHAT_TEMPLATE,
    }


def _write_weights(directory: Path, weights: dict[str, torch.Tensor], num_shards: int) -> None:
    metadata = {"format": "pt"}
    if num_shards == 1:
        save_file(weights, directory / "model.safetensors", metadata=metadata)
        return
    weight_map: dict[str, str] = {}
    names = list(weights)
    for shard in range(num_shards):
        file_name = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        members = names[shard * len(names) // num_shards : (shard + 1) * len(names) // num_shards]
        save_file({name: weights[name] for name in members}, directory / file_name, metadata=metadata)
        weight_map.update(dict.fromkeys(members, file_name))
    total = sum(tensor.nbytes for tensor in weights.values())
    _write_json(
        directory / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map}
    )


def _write_json(path: Path, content: Json) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
