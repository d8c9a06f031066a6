"""Weights on paper: the matrices of a model, and the bytes that they take in a format.

The formats are the engine's layouts. A group of 32 input channels shares a scale and, in 4 bits, a minimum, both of
16 bits: 4-bit weights take 5 bits each, 8-bit weights 8.5. Embedding, output layer, norms and biases stay in 16 bits,
as checkpoints of these formats have them; those of GGUF files take what their types say.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..model_config import ModelConfig
from ..placement import Placement, kv_heads_a_device
from ..stage_layers import stage_layers

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
    """One weight matrix of a layer, as one device has it.

    Attributes:
        name: for people.
        out_features: its rows.
        in_features: its columns.
        num_experts: of a mixture, how many such matrices there are; None: it belongs to no mixture.
        num_chosen: of them, those that compute a token.
    """

    name: str
    out_features: int
    in_features: int
    num_experts: int | None = None
    num_chosen: int = 1

    @property
    def num_weights(self) -> int:
        """Rows times columns, of one expert."""
        return self.out_features * self.in_features

    @property
    def num_held(self) -> int:
        """Weights of all experts."""
        return self.num_weights * (self.num_experts or 1)

    @property
    def num_active(self) -> int:
        """Weights that compute a token."""
        return self.num_weights * self.num_chosen


def format_bits(name: WeightFormat) -> WeightBits:
    """Return the bits of a format."""
    return WeightBits(name=name, layers=_BITS[name])


def attention_matrices(model: ModelConfig, placement: Placement) -> tuple[Matrix, ...]:
    """Return the matrices of a layer's attention as one of its devices has them."""
    hidden, heads, kv_heads = model.hidden_size, model.num_heads // placement.tp, kv_heads_a_device(model, placement)
    return (
        Matrix(name="qkv", out_features=(heads + 2 * kv_heads) * model.head_dim, in_features=hidden),
        Matrix(name="output projection", out_features=hidden, in_features=heads * model.head_dim),
    )


def dense_matrices(model: ModelConfig, placement: Placement) -> tuple[Matrix, ...]:
    """Return the matrices of a feed-forward block without experts."""
    hidden, inner = model.hidden_size, model.intermediate_size // placement.tp
    return (
        Matrix(name="gate and up", out_features=2 * inner, in_features=hidden),
        Matrix(name="down", out_features=hidden, in_features=inner),
    )


def expert_matrices(model: ModelConfig, placement: Placement) -> tuple[Matrix, ...]:
    """Return the matrices of a mixture, with each device's part of every expert.

    Devices that hold whole experts have as many weights, and on average as much to do.
    """
    mixture, hidden = model.mixture, model.hidden_size
    assert mixture is not None, "asked of models with a mixture"
    inner = -(-mixture.intermediate_size // placement.tp)
    shapes = {"experts, gate and up": (2 * inner, hidden), "experts, down": (hidden, inner)}
    return tuple(
        Matrix(
            name=name,
            out_features=rows,
            in_features=columns,
            num_experts=mixture.num_experts,
            num_chosen=mixture.num_chosen,
        )
        for name, (rows, columns) in shapes.items()
    )


def router_matrix(model: ModelConfig) -> Matrix:
    """Return the matrix of a mixture's router, which each device has whole and no tool packs."""
    assert model.mixture is not None, "asked of models with a mixture"
    return Matrix(name="router", out_features=model.mixture.num_experts, in_features=model.hidden_size)


def num_parameters(model: ModelConfig) -> int:
    """Return the model's parameters; a tied output layer counts once."""
    whole = Placement()
    layers = sum(_layer_weights(model, whole, layer) + _other_of_layer(model, layer) for layer in _layers(model))
    ends = _end_matrix(model, whole) * (1 if model.tie_word_embeddings else 2)
    return layers + ends + model.hidden_size


def num_active_parameters(model: ModelConfig) -> int:
    """Return the parameters that compute a token: of a mixture's experts, those that are chosen."""
    if model.mixture is None:
        return num_parameters(model)
    idle = sum(matrix.num_held - matrix.num_active for matrix in expert_matrices(model, Placement()))
    return num_parameters(model) - len(model.mixture.layers) * idle


def weight_bytes(model: ModelConfig, bits: WeightBits, placement: Placement) -> int:
    """Return the bytes of the weights on the device that has most of them."""
    return max(_stage_bytes(model, bits, placement, stage) for stage in range(placement.pp))


def _stage_bytes(model: ModelConfig, bits: WeightBits, placement: Placement, stage: int) -> int:
    layers = stage_layers(model, placement.pp)[stage]
    total = sum(
        _layer_weights(model, placement, layer) * bits.layers + _other_of_layer(model, layer) * _OTHER_BITS
        for layer in layers
    )
    is_first, is_last = stage == 0, stage == placement.pp - 1
    if is_first:
        total += _end_matrix(model, placement) * bits.embedding
    if is_last:
        total += model.hidden_size * _OTHER_BITS
        if not (model.tie_word_embeddings and is_first):
            total += _end_matrix(model, placement) * bits.output
    return int(total / 8)


def _layers(model: ModelConfig) -> range:
    return range(model.num_layers)


def _layer_weights(model: ModelConfig, placement: Placement, layer: int) -> int:
    """Return the weights of a layer's matrices on a device, but for a router's."""
    is_mixture = model.mixture is not None and layer in model.mixture.layers
    block = expert_matrices(model, placement) if is_mixture else dense_matrices(model, placement)
    return sum(matrix.num_held for matrix in (*attention_matrices(model, placement), *block))


def _end_matrix(model: ModelConfig, placement: Placement) -> int:
    """Return the weights of the embedding, and of the output layer, on a device."""
    return -(-model.vocab_size // placement.tp) * model.hidden_size


def _other_of_layer(model: ModelConfig, layer: int) -> int:
    """Return the norms, biases and router of a layer: so few that they count as kept whole by each device."""
    query, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    has_router = model.mixture is not None and layer in model.mixture.layers
    return (
        2 * model.hidden_size
        + (router_matrix(model).num_weights if has_router else 0)
        + model.qk_norm * 2 * model.head_dim
        + model.qkv_bias * (query + 2 * kv)
        + model.output_bias * model.hidden_size
        + model.mlp_bias * (2 * model.intermediate_size + model.hidden_size)
    )
