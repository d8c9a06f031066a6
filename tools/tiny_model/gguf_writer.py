"""Writes a tiny checkpoint as GGUF, laid out as llama.cpp's converter lays out a real one."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tools.dev_extra import dev_extra
from tools.tiny_model.small_quants import PACKERS
from tools.tiny_model.spec import TinyModelSpec
from tools.tiny_model.tokenizer import (
    BOS_TOKEN_ID,
    CHAT_TEMPLATE,
    EOS_TOKEN_ID,
    PRE_TOKENIZERS,
    SPECIAL_TOKENS,
    build_tokenizer,
)
from tools.tiny_model.weights import EMBEDDING, OUTPUT, make_weights

with dev_extra():
    import gguf

_TOP_NAMES = {EMBEDDING: "token_embd.weight", "model.norm.weight": "output_norm.weight", OUTPUT: "output.weight"}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
_EXPERT = re.compile(r"(?P<module>blk\.\d+\.\w+)\.\d+\.weight")  # as files had it before experts were stacked
_EXPERT_NAMES = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"} | {
    "w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down"
}  # fmt: skip
_GEMMA_LAYER_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write_gguf(
    spec: TinyModelSpec,
    path: Path,
    quant: str = "F32",
    *,
    embedding_quant: str | None = None,
    value_quant: str | None = None,
    num_shards: int = 1,
) -> dict[str, torch.Tensor]:
    """Write a GGUF file and return the weights that it really holds.

    Args:
        spec: what to write; its dtype and safetensors sharding don't matter here.
        path: the file; with several shards, -0000i-of-0000N is put before its suffix.
        quant: the type of every matrix, one of `spec.GGUF_TYPES`. Norms and biases are F32, as always in GGUF.
        embedding_quant: the type of the embedding and the output matrix, None: `quant`.
        value_quant: the type of the value and down projections, which files such as Q4_K_M keep in more bits; None:
            `quant`.
        num_shards: files to split into.

    Returns:
        fp32 weights by their Hugging Face names, quantized and back: what a reference must compute with.

    Raises:
        ValueError: if rows don't divide into the type's blocks, or GGUF can't state the spec's rotary scaling.
    """
    weights = make_weights(spec)
    tensors: _Tensors = {}
    stored: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        type_name = "F32"
        shift = 1.0 if spec.is_gemma and name.endswith("norm.weight") else 0.0  # the converter adds what Gemma left off
        if weight.dim() > 1 and not name.endswith(".gate.weight"):
            special = embedding_quant if name in (EMBEDDING, OUTPUT) else value_quant if _is_value(name) else None
            type_name = special or quant
        packed, restored = _quantize(weight + shift, type_name)
        stored[name] = restored - shift
        tensors[gguf_name(name, spec)] = _in_ggml_order(spec, name, packed), gguf.GGMLQuantizationType[type_name]
    tensors = _stack_experts(tensors)
    for name, factors in _frequency_factors(spec).items():
        tensors[name] = factors, gguf.GGMLQuantizationType.F32
    path.parent.mkdir(parents=True, exist_ok=True)
    arch = {"mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe"}.get(spec.family, spec.family)
    per_shard = math.ceil(len(tensors) / num_shards) if num_shards > 1 else 0
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=per_shard)
    _add_model_metadata(writer, arch, spec)
    _add_tokenizer(writer, spec)
    for name, (data, ggml_type) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=ggml_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def gguf_name(name: str, spec: TinyModelSpec) -> str:
    """Return the GGUF name of a tensor that is known by its Hugging Face name."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    if ".experts." in rest:
        _, _, expert, projection, kind = rest.split(".")
        return f"blk.{layer}.{_EXPERT_NAMES[projection]}.{expert}.{kind}"
    module, kind = rest.rsplit(".", 1)
    names = _LAYER_NAMES | (_GEMMA_LAYER_NAMES if spec.is_gemma else {})
    return f"blk.{layer}.{names[module]}.{kind}"


_Tensors = dict[str, tuple[NDArray[np.generic], gguf.GGMLQuantizationType]]


def _stack_experts(tensors: _Tensors) -> _Tensors:
    """Put the matrices of a layer's experts into one tensor [num_experts, rows, columns], in their place."""
    stacks: dict[str, list[NDArray[np.generic]]] = {}
    stacked: _Tensors = {}
    for name, (data, ggml_type) in tensors.items():
        expert = _EXPERT.fullmatch(name)
        if expert is None:
            stacked[name] = data, ggml_type
            continue
        stack = f"{expert['module']}_exps.weight"
        stacks.setdefault(stack, []).append(data)
        stacked[stack] = np.stack(stacks[stack]), ggml_type
    return stacked


def _is_value(name: str) -> bool:
    return any(part in name for part in (".v_proj.", ".down_proj.", ".w2."))


def _quantize(weight: torch.Tensor, type_name: str) -> tuple[NDArray[np.generic], torch.Tensor]:
    values = weight.numpy()
    ggml_type = gguf.GGMLQuantizationType[type_name]
    packed = PACKERS[type_name](values) if type_name in PACKERS else gguf.quants.quantize(values, ggml_type)
    restored = gguf.quants.dequantize(packed, ggml_type).reshape(values.shape)
    return packed, torch.from_numpy(np.array(restored, dtype=np.float32))


def _in_ggml_order(spec: TinyModelSpec, name: str, packed: NDArray[np.generic]) -> NDArray[np.generic]:
    """Reorder the rows of the query and key projections of the llama and granite architectures.

    ggml rotates neighbouring channels there (2i, 2i + 1), Hugging Face channels half a head apart
    (i, i + head_dim / 2).
    """
    is_query, is_key = ".q_proj." in name, ".k_proj." in name
    if spec.family not in ("granite", "llama", "mistral", "mixtral") or not (is_query or is_key):
        return packed
    heads = spec.num_heads if is_query else spec.num_kv_heads
    by_halves = packed.reshape(heads, 2, spec.head_dim // 2, *packed.shape[1:])
    return np.ascontiguousarray(by_halves.swapaxes(1, 2)).reshape(packed.shape)


def _add_model_metadata(writer: gguf.GGUFWriter, arch: str, spec: TinyModelSpec) -> None:
    writer.add_name(f"Tiny {spec.family}")
    writer.add_block_count(spec.num_layers)
    writer.add_context_length(spec.max_position)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.mlp_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.rms_norm_eps)
    writer.add_rope_dimension_count(spec.rotary_dim)
    writer.add_rope_freq_base(spec.rope_theta)
    writer.add_vocab_size(spec.vocab_size)
    if spec.sliding_window is not None and any(spec.sliding_layers):
        writer.add_sliding_window(spec.sliding_window)
        is_stated = spec.layer_types is not None or spec.sliding_window_pattern is not None or not spec.is_gemma
        if is_stated and not all(spec.sliding_layers):
            writer.add_array(f"{arch}.attention.sliding_window_pattern", list(spec.sliding_layers))
    if spec.mixture_layers:
        writer.add_expert_count(spec.num_experts)
        writer.add_expert_used_count(spec.num_chosen_experts)
    if spec.family == "qwen3_moe":
        writer.add_expert_feed_forward_length(spec.expert_mlp_size)
    if spec.family == "granite":
        writer.add_embedding_scale(spec.embedding_multiplier)
        writer.add_attention_scale(spec.attention_multiplier)
        writer.add_residual_scale(spec.residual_multiplier)
        writer.add_logit_scale(spec.logits_scaling)
    if spec.is_gemma:
        _add_gemma_metadata(writer, spec)
    _add_rope_scaling(writer, spec)


def _add_gemma_metadata(writer: gguf.GGUFWriter, spec: TinyModelSpec) -> None:
    # That there is no window or no bound is not what an absent key says of gemma2.
    if spec.sliding_window is None:
        writer.add_sliding_window(0)
    writer.add_final_logit_softcapping(spec.logit_soft_cap or 0.0)
    if spec.family == "gemma2":
        writer.add_attn_logit_softcapping(spec.attention_soft_cap or 0.0)
    elif spec.local_rope_theta != 10_000.0:
        writer.add_rope_freq_base_swa(spec.local_rope_theta)


def _add_rope_scaling(writer: gguf.GGUFWriter, spec: TinyModelSpec) -> None:
    scaling = spec.rope_scaling or {}
    kind = scaling.get("rope_type", "default")
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(scaling["factor"])
        if kind == "yarn":
            writer.add_rope_scaling_orig_ctx_len(scaling.get("original_max_position_embeddings", spec.max_position))
    elif kind == "longrope":  # converters of Phi-3 state no kind
        original = scaling["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        factor = max(spec.max_position / original, 1)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(factor) / math.log(original)))
    elif kind not in ("default", "llama3"):
        raise ValueError(f"GGUF can't state the rotary scaling {kind!r}; it knows linear, yarn, llama3 and longrope")


def _add_tokenizer(writer: gguf.GGUFWriter, spec: TinyModelSpec) -> None:
    tokenizer = build_tokenizer(spec.family, spec.vocab_size)
    known = tokenizer.get_vocab_size()
    tokens = [tokenizer.id_to_token(token_id) or "" for token_id in range(known)]
    types = [gguf.TokenType.CONTROL if token in SPECIAL_TOKENS else gguf.TokenType.NORMAL for token in tokens]
    # As the converter does: the embedding's further rows get names that are never text.
    tokens += [f"[PAD{token_id}]" for token_id in range(known, spec.vocab_size)]
    types += [gguf.TokenType.UNUSED] * (spec.vocab_size - known)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZERS[spec.family])
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(BOS_TOKEN_ID)
    writer.add_eos_token_id(EOS_TOKEN_ID)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _frequency_factors(spec: TinyModelSpec) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of what each frequency is divided by, as the converter stores them."""
    scaling = spec.rope_scaling or {"rope_type": "default"}
    match scaling["rope_type"]:
        case "llama3":
            return {"rope_freqs.weight": _llama3_factors(spec, scaling)}
        case "longrope":
            return {f"rope_factors_{k}.weight": np.array(scaling[f"{k}_factor"], np.float32) for k in ("long", "short")}
    return {}


def _llama3_factors(spec: TinyModelSpec, scaling: dict[str, Any]) -> NDArray[np.float32]:
    """Return the divisors of llama3 scaling.

    Source: "rope_scaling" of Llama 3.1's reference code (apply_scaling).
    """
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    original = scaling["original_max_position_embeddings"]
    wavelengths = 2 * math.pi * spec.rope_theta ** (np.arange(0, spec.head_dim, 2) / spec.head_dim)
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    factors: NDArray[np.float32] = (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
    return factors
