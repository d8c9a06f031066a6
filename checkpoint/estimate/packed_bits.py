"""Bits of a packed checkpoint's weights in the layouts that they are loaded into, scales included.

Codes of 4 bits share a scale and a minimum of 16 bits each by 32: 5 bits. Codes of 8 bits share a scale: 8.5, and with
zero points a minimum too: 9. A format whose groups are larger repeats their scales. Those of fp8 are too few to count.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..mixture import Mixture
from ..model_config import ModelConfig
from ..quantization.quantization_config import QuantizationConfig
from ..quantization.schemes import (
    AWQScheme,
    Fp8Scheme,
    GPTQScheme,
    Int8Scheme,
    PackedIntScheme,
    RoundedScheme,
    Scheme,
)
from .weights import WeightBits, WeightFormat, format_bits

_BITS_WITH_MINIMUM = 9.0
_OUTPUT_LAYER = "lm_head"
# Whose checkpoints hold query, key and value, and gate and up, as one matrix each.
_FUSED_ARCHITECTURES = frozenset({"Phi3ForCausalLM"})
# Whose mixtures are not called as most families call them.
_EXPERT_NAMES = {"MixtralForCausalLM": ("block_sparse_moe", "w1", "w3", "w2")}


def packed_bits(model: ModelConfig, quantization: QuantizationConfig) -> WeightBits:
    """Return the bits of a checkpoint whose layers may be packed each in another way, or not at all.

    Args:
        model: its shapes.
        quantization: which of its layers are packed, and how.

    Returns:
        The average over the layers; the name is that of the format that most weights have.
    """
    sizes: dict[WeightFormat, int] = {}
    num_bits, num_weights = 0.0, 0
    for module, size in _linear_layers(model):
        name, bits = _format_of(quantization.scheme_of(module), model)
        sizes[name] = sizes.get(name, 0) + size
        num_bits += bits * size
        num_weights += size
    # A tied output layer is the embedding, which no tool packs.
    output = None if model.tie_word_embeddings else quantization.scheme_of(_OUTPUT_LAYER)
    return WeightBits(
        name=max(sizes, key=lambda name: sizes[name]),
        layers=num_bits / num_weights,
        output=_format_of(output, model)[1],
    )


def _format_of(scheme: Scheme | None, model: ModelConfig) -> tuple[WeightFormat, float]:
    name: WeightFormat
    match scheme:
        case None:
            name = "float16" if model.dtype == "float16" else "bfloat16"
        case Fp8Scheme() | RoundedScheme(to="fp8"):
            name = "fp8"
        case GPTQScheme(bits=4) | AWQScheme() | PackedIntScheme(bits=4):
            name = "int4"
        case GPTQScheme(is_symmetric=False) | PackedIntScheme(is_symmetric=False) | Int8Scheme(is_symmetric=False):
            return "int8", _BITS_WITH_MINIMUM
        case GPTQScheme() | PackedIntScheme() | Int8Scheme() | RoundedScheme():
            name = "int8"
    return name, format_bits(name).layers


def _linear_layers(model: ModelConfig) -> Iterator[tuple[str, int]]:
    """Yield the name of each linear layer's module, as checkpoints spell it, and how many weights it has."""
    hidden, inner = model.hidden_size, model.intermediate_size
    query, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention = {"self_attn.q_proj": query, "self_attn.k_proj": kv, "self_attn.v_proj": kv, "self_attn.o_proj": query}
    block = {"mlp.gate_proj": inner, "mlp.up_proj": inner, "mlp.down_proj": inner}
    if model.architecture in _FUSED_ARCHITECTURES:
        attention = {"self_attn.qkv_proj": query + 2 * kv, "self_attn.o_proj": query}
        block = {"mlp.gate_up_proj": 2 * inner, "mlp.down_proj": inner}
    experts = {} if model.mixture is None else _experts(model.architecture, model.mixture)
    mixtures = () if model.mixture is None else model.mixture.layers
    for layer in range(model.num_layers):
        for name, size in (attention | (experts if layer in mixtures else block)).items():
            yield f"model.layers.{layer}.{name}", size * hidden


def _experts(architecture: str, mixture: Mixture) -> dict[str, int]:
    """Return the channels of each expert's projections but for those of the hidden size, by their modules."""
    names = ("mlp", "gate_proj", "up_proj", "down_proj")
    module, *projections = _EXPERT_NAMES.get(architecture, names)
    return {
        f"{module}.experts.{expert}.{name}": mixture.intermediate_size
        for expert in range(mixture.num_experts)
        for name in projections
    }
