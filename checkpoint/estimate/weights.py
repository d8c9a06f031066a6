"""Weights on paper: the matrices of a model, and the bytes that they take in a format.

The formats are the engine's layouts. A group of 32 input channels shares a scale and, in 4 bits, a minimum, both of
16 bits: 4-bit weights take 5 bits each, 8-bit weights 8.5. Embedding, output layer, norms and biases stay in 16 bits,
as checkpoints of these formats have them; those of GGUF files take what their types say.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..model_config import ModelConfig
from ..placement import Placement, kv_heads_a_device, layers_a_stage

WeightFormat = Literal["bfloat16", "float16", "fp8", "int8", "int4"]

_BITS: dict[WeightFormat, float] = {"bfloat16": 16, "float16": 16, "fp8": 8, "int8": 8.5, "int4": 5}
_OTHER_BITS = 16  # of norms and biases


class WeightBits(msgspec.Struct, frozen=True, kw_only=True):
    """Bits a weight takes, by where it is.

    Attributes:
        name: of the format, for people.
        layers: of the matrices in layers, on average.
        embedding: of the embedding.
        output: of the output layer, be it tied to the embedding or not.
    """

    name: str
    layers: float
    embedding: float = 16
    output: float = 16


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """One weight matrix of a layer, as one device has it."""

    name: str
    out_features: int
    in_features: int

    @property
    def num_weights(self) -> int:
        """Rows times columns."""
        return self.out_features * self.in_features


def format_bits(name: WeightFormat) -> WeightBits:
    """Return the bits of a format."""
    return WeightBits(name=name, layers=_BITS[name])


def layer_matrices(model: ModelConfig, placement: Placement) -> tuple[Matrix, ...]:
    """Return the matrices of a layer as one of its devices has them."""
    tp, hidden = placement.tp, model.hidden_size
    heads, kv_heads = model.num_heads // tp, kv_heads_a_device(model, placement)
    inner = model.intermediate_size // tp
    return (
        Matrix(name="qkv", out_features=(heads + 2 * kv_heads) * model.head_dim, in_features=hidden),
        Matrix(name="output projection", out_features=hidden, in_features=heads * model.head_dim),
        Matrix(name="gate and up", out_features=2 * inner, in_features=hidden),
        Matrix(name="down", out_features=hidden, in_features=inner),
    )


def num_parameters(model: ModelConfig) -> int:
    """Return the model's parameters; a tied output layer counts once."""
    whole = Placement()
    matrices = sum(matrix.num_weights for matrix in layer_matrices(model, whole))
    ends = _end_matrix(model, whole) * (1 if model.tie_word_embeddings else 2)
    return model.num_layers * (matrices + _other_of_layer(model)) + ends + model.hidden_size


def weight_bytes(model: ModelConfig, bits: WeightBits, placement: Placement) -> int:
    """Return the bytes of the weights on the device that has most of them."""
    return max(_stage_bytes(model, bits, placement, stage) for stage in range(placement.pp))


def _stage_bytes(model: ModelConfig, bits: WeightBits, placement: Placement, stage: int) -> int:
    longest = layers_a_stage(model, placement)
    layers = max(0, min(longest, model.num_layers - stage * longest))
    matrices = sum(matrix.num_weights for matrix in layer_matrices(model, placement))
    total = layers * (matrices * bits.layers + _other_of_layer(model) * _OTHER_BITS)
    is_first, is_last = stage == 0, stage == placement.pp - 1
    if is_first:
        total += _end_matrix(model, placement) * bits.embedding
    if is_last:
        total += model.hidden_size * _OTHER_BITS
        if not (model.tie_word_embeddings and is_first):
            total += _end_matrix(model, placement) * bits.output
    return int(total / 8)


def _end_matrix(model: ModelConfig, placement: Placement) -> int:
    """Return the weights of the embedding, and of the output layer, on a device."""
    return -(-model.vocab_size // placement.tp) * model.hidden_size


def _other_of_layer(model: ModelConfig) -> int:
    """Return the norms and biases of a layer: so few that they count as kept whole by each device."""
    query, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    return (
        2 * model.hidden_size
        + model.qk_norm * 2 * model.head_dim
        + model.qkv_bias * (query + 2 * kv)
        + model.output_bias * model.hidden_size
        + model.mlp_bias * (2 * model.intermediate_size + model.hidden_size)
    )
