"""What a model is: one frozen struct, read from config.json or from GGUF metadata, whatever the family.

Per-layer facts are resolved here once, so that models and caches never look at a checkpoint's own spelling.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

# Far beyond any model. What a damaged file states is checked against it before anything is made per layer.
MAX_LAYERS = 10_000


class LayerKind(enum.StrEnum):
    """How a layer attends: to everything before it, or to a window."""

    FULL = "full"
    SLIDING = "sliding"


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """How rotary frequencies are stretched beyond the trained context.

    `kind` is one of linear, dynamic, llama3, yarn. Fields that a kind does not use keep their defaults.

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
    attention_factor: float | None = None  # yarn; None: 0.1 ln(factor) + 1
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn: round the correction range to whole dimensions
    frequency_factors: tuple[float, ...] = ()  # llama3 as GGUF states it


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one checkpoint that the engine needs.

    Attributes:
        architecture: the Hugging Face class name, for example "LlamaForCausalLM"; GGUF names are mapped to it.
        model_path: the local GGUF file or directory it was read from.
        file_format: "gguf" or "safetensors".
        vocab_size: rows of the embedding. May exceed the tokenizer's size (padding rows are never sampled).
        tokenizer_size: ids that the tokenizer knows; sampling and validation use this bound.
        dtype: the checkpoint's own dtype name ("float32", "float16", "bfloat16"); "quantized" for packed GGUF.
        layer_kinds: one entry per layer.
        sliding_window: keys a SLIDING layer sees, its own token included; None without such layers.
        rotary_dim: leading channels of each head that rotate.
        qk_norm: RMSNorm on each query and key head before rotation (Qwen3).
        max_position: the longest context that the model was made for, rope scaling included.
        bos_token_id, eos_token_ids: as the checkpoint states them (config, generation_config or GGUF metadata); end
            tokens beyond tokenizer_size are left out.
        quantization: the checkpoint's quantization_config as it stands, None for a plain one.
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
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    hidden_act: str = "silu"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    quantization: dict[str, Any] | None = None  # Any: each quantization format has its own keys, read by its loader
