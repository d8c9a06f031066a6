"""Shapes of well-known models, so that an estimate needs no file. What is here can be served by its checkpoint."""

from __future__ import annotations

import msgspec

from ..mixture import Mixture
from ..model_config import LayerKind, ModelConfig, RopeScaling

_LLAMA3_ROPE = RopeScaling(kind="llama3", factor=8.0, original_max_position=8192)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A model without its weights.

    Attributes:
        config: its `model_path` is empty.
        hub_ids: repositories of the hub that have exactly this shape, in lower case; they may be gated.
    """

    config: ModelConfig
    hub_ids: tuple[str, ...]


def _llama(layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, **options: object) -> ModelConfig:
    facts: dict[str, object] = {
        "architecture": "LlamaForCausalLM", "vocab_size": 128_256, "max_position": 131_072, "dtype": "bfloat16",
        "rope_theta": 500_000.0, "rope_scaling": _LLAMA3_ROPE, "rms_norm_eps": 1e-5, **options,
    }  # fmt: skip
    head_dim = facts.pop("head_dim", hidden // heads)
    return msgspec.convert(
        {
            "model_path": "", "file_format": "safetensors", "tokenizer_size": facts["vocab_size"],
            "hidden_size": hidden, "intermediate_size": intermediate, "num_layers": layers, "num_heads": heads,
            "num_kv_heads": kv_heads, "head_dim": head_dim, "rotary_dim": head_dim,
            "layer_kinds": (LayerKind.FULL,) * layers, **facts,
        },
        ModelConfig,
    )  # fmt: skip


_LLAMA2 = {
    "vocab_size": 32_000, "max_position": 4096, "dtype": "float16", "rope_theta": 10_000.0, "rope_scaling": None
}  # fmt: skip
_LLAMA3 = {"max_position": 8192, "rope_scaling": None}
_QWEN2 = {
    "architecture": "Qwen2ForCausalLM", "vocab_size": 152_064, "max_position": 32_768, "rope_theta": 1e6,
    "rope_scaling": None, "qkv_bias": True, "rms_norm_eps": 1e-6,
}  # fmt: skip
_MIXTRAL = {
    "architecture": "MixtralForCausalLM", "rope_theta": 1e6, "rope_scaling": None, "rms_norm_eps": 1e-5,
}  # fmt: skip
_QWEN3 = {
    "architecture": "Qwen3ForCausalLM", "vocab_size": 151_936, "max_position": 40_960, "rope_theta": 1e6,
    "rope_scaling": None, "head_dim": 128, "qk_norm": True, "rms_norm_eps": 1e-6,
}  # fmt: skip


_QWEN3_MOE = {**_QWEN3, "architecture": "Qwen3MoeForCausalLM"}


def _experts(layers: int, num_experts: int, num_chosen: int, size: int) -> Mixture:
    """Return a mixture in every layer."""
    return Mixture(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=size,
        is_renormalized=True,
        layers=tuple(range(layers)),
    )


def _hub(*names: str) -> tuple[str, ...]:
    """Return the ids, each also as its model that follows instructions."""
    return tuple(name.lower() + suffix for name in names for suffix in ("", "-instruct"))


SHAPES: dict[str, Shape] = {
    "llama-3.2-1b": Shape(
        config=_llama(16, 2048, 8192, 32, 8, tie_word_embeddings=True), hub_ids=_hub("meta-llama/Llama-3.2-1B")
    ),
    "llama-3.2-3b": Shape(
        config=_llama(28, 3072, 8192, 24, 8, tie_word_embeddings=True), hub_ids=_hub("meta-llama/Llama-3.2-3B")
    ),
    "llama-3.1-8b": Shape(
        config=_llama(32, 4096, 14_336, 32, 8),
        hub_ids=_hub("meta-llama/Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B"),
    ),
    "llama-3-8b": Shape(config=_llama(32, 4096, 14_336, 32, 8, **_LLAMA3), hub_ids=_hub("meta-llama/Meta-Llama-3-8B")),
    "llama-3.3-70b": Shape(config=_llama(80, 8192, 28_672, 64, 8), hub_ids=_hub("meta-llama/Llama-3.3-70B")),
    "llama-3.1-70b": Shape(
        config=_llama(80, 8192, 28_672, 64, 8),
        hub_ids=_hub("meta-llama/Llama-3.1-70B", "meta-llama/Meta-Llama-3.1-70B"),
    ),
    "llama-3-70b": Shape(
        config=_llama(80, 8192, 28_672, 64, 8, **_LLAMA3), hub_ids=_hub("meta-llama/Meta-Llama-3-70B")
    ),
    "llama-3.1-405b": Shape(
        config=_llama(126, 16_384, 53_248, 128, 8),
        hub_ids=_hub("meta-llama/Llama-3.1-405B", "meta-llama/Meta-Llama-3.1-405B"),
    ),
    "llama-2-7b": Shape(
        config=_llama(32, 4096, 11_008, 32, 32, **_LLAMA2),
        hub_ids=("meta-llama/llama-2-7b-hf", "meta-llama/llama-2-7b-chat-hf"),
    ),
    "llama-2-13b": Shape(
        config=_llama(40, 5120, 13_824, 40, 40, **_LLAMA2),
        hub_ids=("meta-llama/llama-2-13b-hf", "meta-llama/llama-2-13b-chat-hf"),
    ),
    "llama-2-70b": Shape(
        config=_llama(80, 8192, 28_672, 64, 8, **_LLAMA2),
        hub_ids=("meta-llama/llama-2-70b-hf", "meta-llama/llama-2-70b-chat-hf"),
    ),
    "mistral-7b": Shape(
        config=_llama(
            32, 4096, 14_336, 32, 8, architecture="MistralForCausalLM", vocab_size=32_768, max_position=32_768,
            rope_theta=1e6, rope_scaling=None,
        ),
        hub_ids=("mistralai/mistral-7b-v0.3", "mistralai/mistral-7b-instruct-v0.3"),
    ),
    "mixtral-8x7b": Shape(
        config=_llama(
            32, 4096, 14_336, 32, 8, vocab_size=32_000, max_position=32_768, mixture=_experts(32, 8, 2, 14_336),
            **_MIXTRAL,
        ),
        hub_ids=("mistralai/mixtral-8x7b-v0.1", "mistralai/mixtral-8x7b-instruct-v0.1"),
    ),
    "mixtral-8x22b": Shape(
        config=_llama(
            56, 6144, 16_384, 48, 8, vocab_size=32_768, max_position=65_536, mixture=_experts(56, 8, 2, 16_384),
            **_MIXTRAL,
        ),
        hub_ids=("mistralai/mixtral-8x22b-instruct-v0.1",),
    ),
    "qwen2.5-7b": Shape(config=_llama(28, 3584, 18_944, 28, 4, **_QWEN2), hub_ids=_hub("Qwen/Qwen2.5-7B")),
    "qwen2.5-14b": Shape(config=_llama(48, 5120, 13_824, 40, 8, **_QWEN2), hub_ids=_hub("Qwen/Qwen2.5-14B")),
    "qwen2.5-32b": Shape(config=_llama(64, 5120, 27_648, 40, 8, **_QWEN2), hub_ids=_hub("Qwen/Qwen2.5-32B")),
    "qwen2.5-72b": Shape(config=_llama(80, 8192, 29_568, 64, 8, **_QWEN2), hub_ids=_hub("Qwen/Qwen2.5-72B")),
    "qwen3-8b": Shape(config=_llama(36, 4096, 12_288, 32, 8, **_QWEN3), hub_ids=("qwen/qwen3-8b",)),
    "qwen3-14b": Shape(config=_llama(40, 5120, 17_408, 40, 8, **_QWEN3), hub_ids=("qwen/qwen3-14b",)),
    "qwen3-32b": Shape(config=_llama(64, 5120, 25_600, 64, 8, **_QWEN3), hub_ids=("qwen/qwen3-32b",)),
    "qwen3-30b-a3b": Shape(
        config=_llama(48, 2048, 6144, 32, 4, mixture=_experts(48, 128, 8, 768), **_QWEN3_MOE),
        hub_ids=("qwen/qwen3-30b-a3b",),
    ),
    "qwen3-235b-a22b": Shape(
        config=_llama(94, 4096, 12_288, 64, 4, mixture=_experts(94, 128, 8, 1536), **_QWEN3_MOE),
        hub_ids=("qwen/qwen3-235b-a22b",),
    ),
    "smollm2-135m": Shape(
        config=_llama(
            30, 576, 1536, 9, 3, vocab_size=49_152, max_position=8192, rope_theta=100_000.0, rope_scaling=None,
            tie_word_embeddings=True,
        ),
        hub_ids=_hub("HuggingFaceTB/SmolLM2-135M"),
    ),
}  # fmt: skip


def find_shape(name: str) -> tuple[str, ModelConfig] | None:
    """Return a shape's name and configuration, by its name or by the id of one of its repositories, in any case."""
    key = name.lower()
    for shape_name, shape in SHAPES.items():
        if key == shape_name or key in shape.hub_ids:
            return shape_name, shape.config
    return None
