"""What a tiny checkpoint shall look like: one frozen struct, whatever file format it ends in."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Family = Literal["gemma2", "gemma3", "granite", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe"]
FAMILIES: tuple[Family, ...] = (
    "gemma2", "gemma3", "granite", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe",
)  # fmt: skip
# Of a GGUF file's matrices.
GGUF_TYPES = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
    "IQ4_XS",
)  # fmt: skip
ARCHITECTURES: dict[Family, str] = {
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


class TinyModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape and options of one tiny checkpoint. Equal specs give equal files, bit for bit.

    Attributes:
        hidden_size: 256 (or a multiple) where K-quants are wanted, and num_heads * head_dim too: their blocks hold 256
            values of a row.
        intermediate_size: None: twice the hidden size.
        vocab_size: rows of the embedding; the tokenizer may know fewer ids.
        rope_scaling: as config.json states it, under the modern key rope_type, for example
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}.
        rope_spelling: how config.json spells it.
        partial_rotary_factor: the share of each head's channels that rotate (phi3).
        sliding_window: keys that a sliding layer sees. mistral, phi3: all layers slide; qwen: from max_window_layers
            on; gemma: all but every sliding_window_pattern-th.
        sliding_window_pattern: see there; None: the family's own, 2 of gemma2 and 6 of gemma3.
        layer_types: config.json's layer_types, None to leave them out.
        embedding_multiplier, attention_multiplier, residual_multiplier, logits_scaling: granite's, as config.json
            states them.
        local_rope_theta: gemma3's, of the layers that slide.
        query_pre_attn_scalar, attention_soft_cap, logit_soft_cap: gemma's; None: head_dim, no bound.
        num_experts, num_chosen_experts: of a mixture (mixtral, qwen3_moe).
        expert_size: channels between an expert's projections (qwen3_moe); None: half the intermediate size.
        dense_layers: that have no mixture (qwen3_moe).
        dtype: of the Hugging Face weights.
        num_shards: safetensors files; 1 writes model.safetensors without an index.
        seed: of the weights.
    """

    family: Family = "llama"
    hidden_size: int = 64
    intermediate_size: int | None = None
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    vocab_size: int = 512
    max_position: int = 512
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] | None = None  # Any: numbers and strings, as in config.json
    rope_spelling: Literal["rope_type", "type", "both", "rope_parameters"] = "rope_type"
    partial_rotary_factor: float = 1.0
    sliding_window: int | None = None
    max_window_layers: int = 1
    sliding_window_pattern: int | None = None
    layer_types: tuple[str, ...] | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    embedding_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    local_rope_theta: float = 10_000.0
    query_pre_attn_scalar: int | None = None
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    num_experts: int = 6
    num_chosen_experts: int = 2
    expert_size: int | None = None
    dense_layers: tuple[int, ...] = ()
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    num_shards: int = 1
    seed: int = 0

    @property
    def mlp_size(self) -> int:
        """The resolved intermediate size."""
        return self.intermediate_size or 2 * self.hidden_size

    @property
    def expert_mlp_size(self) -> int:
        """The resolved size of an expert."""
        return self.mlp_size if self.family == "mixtral" else self.expert_size or self.mlp_size // 2

    @property
    def mixture_layers(self) -> tuple[int, ...]:
        """Which layers have experts."""
        if self.family not in ("mixtral", "qwen3_moe"):
            return ()
        return tuple(layer for layer in range(self.num_layers) if layer not in self.dense_layers)

    @property
    def is_gemma(self) -> bool:
        """Whether the family is one of Gemma's."""
        return self.family in ("gemma2", "gemma3")

    @property
    def has_qk_norm(self) -> bool:
        """Whether each query and key head is normed."""
        return self.family in ("gemma3", "qwen3", "qwen3_moe")

    @property
    def window_pattern(self) -> int | None:
        """The resolved sliding_window_pattern, None where the family has none."""
        return self.sliding_window_pattern or {"gemma2": 2, "gemma3": 6}.get(self.family)

    @property
    def has_qkv_bias(self) -> bool:
        """Whether the query, key and value projections have a bias."""
        return self.family == "qwen2" or self.has_output_bias

    @property
    def has_output_bias(self) -> bool:
        """Whether the attention's output projection has a bias."""
        return (self.is_gemma or self.family in ("granite", "llama", "qwen3", "qwen3_moe")) and self.attention_bias

    @property
    def has_mlp_bias(self) -> bool:
        """Whether the projections of the MLP have a bias."""
        return self.family in ("granite", "llama") and self.mlp_bias

    @property
    def has_fused_projections(self) -> bool:
        """Whether query, key and value, and gate and up, are one matrix each."""
        return self.family == "phi3"

    @property
    def rotary_dim(self) -> int:
        """How many channels of each head rotate."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def sliding_layers(self) -> tuple[bool, ...]:
        """Which layers attend within the window."""
        if self.sliding_window is None or self.family in ("granite", "llama"):
            return (False,) * self.num_layers
        if self.layer_types is not None:
            return tuple(kind == "sliding_attention" for kind in self.layer_types)
        if self.window_pattern is not None:
            return tuple((layer + 1) % self.window_pattern != 0 for layer in range(self.num_layers))
        first = 0 if self.family in ("mistral", "mixtral", "phi3") else self.max_window_layers
        return tuple(layer >= first for layer in range(self.num_layers))
