"""What a model is: one frozen struct, read from config.json or from GGUF metadata, whatever the family.

Per-layer facts are resolved here once, so that models and caches never look at a checkpoint's own spelling.
"""

from __future__ import annotations

import enum
from typing import Literal, TypeAlias

import msgspec

from .mixture import Mixture
from .quantization.quantization_config import QuantizationConfig

# Far beyond any model. What a damaged file states is checked against it before anything is made per layer.
MAX_LAYERS = 10_000

# What a gated feed-forward block puts its gate through.
Activation: TypeAlias = Literal["silu", "gelu_tanh"]


class LayerKind(enum.StrEnum):
    """How a layer attends: to everything before it, or to a window."""

    FULL = "full"
    SLIDING = "sliding"


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """How rotary frequencies are stretched beyond the trained context.

    `kind` is one of linear, dynamic, llama3, yarn, longrope. Fields that a kind does not use keep their defaults.

    A GGUF file states llama3 scaling not by its parameters but by its result, one divisor per frequency: then `kind` is
    llama3 and `frequency_factors` has rotary_dim / 2 entries, which replace the formula (inv_freq[i] / factors[i]).
    """

    kind: str
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn, longrope; None: from the factor, by the kind's formula
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn: round the correction range to whole dimensions
    frequency_factors: tuple[float, ...] = ()  # llama3 as GGUF states it
    short_factors: tuple[float, ...] = ()  # longrope: divisors of the frequencies within original_max_position
    long_factors: tuple[float, ...] = ()  # longrope: the same where a context may be longer
    short_attention_factor: float | None = None  # longrope: beside short_factors, in place of attention_factor
    long_attention_factor: float | None = None  # longrope: beside long_factors


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one checkpoint that the engine needs.

    Attributes:
        architecture: the Hugging Face class name, for example "LlamaForCausalLM"; GGUF names are mapped to it.
        model_path: the local GGUF file or directory it was read from.
        file_format: "gguf" or "safetensors".
        vocab_size: rows of the embedding. May exceed the tokenizer's size (padding rows are never sampled).
        tokenizer_size: ids that the tokenizer knows; sampling and validation use this bound.
        dtype: the checkpoint's own dtype name ("float32", "float16", "bfloat16"); "quantized" for packed GGUF.
        packed_type: of a packed GGUF file the type of most of its layers' weights ("Q4_1"); None for all else.
        layer_kinds: one entry per layer.
        sliding_window: keys a SLIDING layer sees, its own token included; None without such layers.
        rotary_dim: leading channels of each head that rotate.
        qk_norm: RMSNorm on each query and key head before rotation (Qwen3, Gemma 3).
        norm_weight_offset: what is added to the weights of norms as they are stored (Gemma's are stored less 1).
        has_float32_norms: weights of norms are kept in float32, whatever activations are. Gemma's are stored as sums
            with 1 or become such sums, and have bits below those that 16-bit dtypes keep beside a 1.
        local_rope_theta: theta of the SLIDING layers, whose frequencies are not scaled; None: as of the others.
        attention_scale: multiplier of attention logits; None: 1 / sqrt(head_dim).
        attention_soft_cap: bound of the scaled attention logits; None: unbounded.
        embedding_scale: multiplier of a token's embedding.
        residual_scale: multiplier of each block's output before it joins the residual stream.
        logit_scale: multiplier of the output layer's logits.
        logit_soft_cap: bound of the logits after that; None: unbounded.
        hidden_act: what the feed-forward gate is put through.
        max_position: the longest context that the model was made for, rope scaling included.
        bos_token_id, eos_token_ids: as the checkpoint states them (config, generation_config or GGUF metadata); end
            tokens beyond tokenizer_size are left out.
        mixture: the layers that have experts, None for a model without.
        quantization: how a safetensors checkpoint's linear layers are packed, None for a plain one and for GGUF.
    """

    architecture: str
    model_path: str
    file_format: str
    vocab_size: int
    tokenizer_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rotary_dim: int
    max_position: int
    dtype: str
    layer_kinds: tuple[LayerKind, ...]
    packed_type: str | None = None
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norm_weight_offset: float = 0.0
    has_float32_norms: bool = False
    local_rope_theta: float | None = None
    attention_scale: float | None = None
    attention_soft_cap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_soft_cap: float | None = None
    hidden_act: Activation = "silu"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    mixture: Mixture | None = None
    quantization: QuantizationConfig | None = None
