"""The canonical layouts that kernels know: what a weight looks like after load, whatever file it came from.

Loaders make canonical weights, row-major and easy to read; a backend may bring them into an order of its own at load
(`Ops.prepare_weight`). A new layout (4-bit floats, say) is one more class here and one more case in each backend's
`linear`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from pagewire.checkpoint.model_config import Activation

# Input channels that share a scale; 8-bit weights may halve it.
GROUP_SIZE = 32
# Rows and input channels of a tile of fp8 weights that share a scale, where neither a row nor the whole matrix does.
FP8_TILE = 128


class LinearWeight(ABC):
    """A matrix of out_features rows and in_features columns, perhaps with a bias: what a linear product takes."""

    __slots__ = ()

    @property
    @abstractmethod
    def out_features(self) -> int:
        """Rows of the matrix: channels that a product with it gives."""

    @property
    @abstractmethod
    def in_features(self) -> int:
        """Columns of the matrix: channels that a product with it takes."""


@dataclass(slots=True)
class DenseWeight(LinearWeight):
    """A plain matrix.

    Attributes:
        weight: [out_features, in_features], float32, float16 or bfloat16, contiguous.
        bias: [out_features], any of these dtypes, or None.
    """

    weight: Tensor
    bias: Tensor | None = None

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]


@dataclass(slots=True)
class Int4Weight(LinearWeight):
    """Codes of 4 bits in groups of 32 input channels: weight = scale * code + minimum, code 0 to 15.

    The order of the codes is ggml's. A format whose groups are larger repeats their scale and minimum. Channels that
    pad the last group have codes of zero; products take their activations as zero, too.

    Attributes:
        codes: [out_features, num_groups * 16] uint8, contiguous. Byte j of a group holds the code of its channel j in
            the low four bits and that of channel j + 16 in the high four.
        scale: [out_features, num_groups] float16, contiguous.
        minimum: like `scale`.
        num_channels: columns that are real, at most num_groups * 32.
        bias: [out_features] float32, or None.
        permutation: [num_channels] int32: column j multiplies input channel permutation[j], each of them once; None:
            channel j. Some formats give channels to groups by their weight, so that a group's are not neighbours.
    """

    codes: Tensor
    scale: Tensor
    minimum: Tensor
    num_channels: int
    bias: Tensor | None = None
    permutation: Tensor | None = None

    @property
    def out_features(self) -> int:
        return self.codes.shape[0]

    @property
    def in_features(self) -> int:
        return self.num_channels


@dataclass(slots=True)
class Int8Weight(LinearWeight):
    """Codes of 8 bits in groups of input channels: weight = scale * code (+ minimum), code -128 to 127.

    A format whose groups are larger repeats their scale and minimum.

    Attributes:
        codes: [out_features, in_features] int8, contiguous; in_features is a multiple of 32.
        scale: [out_features, in_features / group_size] float16, contiguous, group_size 32 or 16.
        minimum: like `scale`, or None: zero everywhere.
        bias: [out_features] float32, or None.
        permutation: as of `Int4Weight`.
    """

    codes: Tensor
    scale: Tensor
    minimum: Tensor | None = None
    bias: Tensor | None = None
    permutation: Tensor | None = None

    @property
    def out_features(self) -> int:
        return self.codes.shape[0]

    @property
    def in_features(self) -> int:
        return self.codes.shape[1]

    @property
    def group_size(self) -> int:
        """Input channels that share a scale: 32 or 16."""
        return self.codes.shape[1] // self.scale.shape[1]


@dataclass(slots=True)
class Fp8Weight(LinearWeight):
    """Numbers of 8 bits, e4m3 (finite, no infinities), scaled by tile: weight = scale * code.

    Attributes:
        codes: [out_features, in_features] float8_e4m3fn, contiguous.
        scale: [ceil(out_features / tile_rows), ceil(in_features / tile_columns)] float32, contiguous: one number for
            the whole matrix, one a row, or one a tile of 128 x 128, by the tile's size.
        tile_rows: rows that share a scale: 1, 128 or all of them.
        tile_columns: input channels that share a scale: 128 or all of them.
        bias: [out_features] float32, or None.
    """

    codes: Tensor
    scale: Tensor
    tile_rows: int
    tile_columns: int
    bias: Tensor | None = None

    @property
    def out_features(self) -> int:
        return self.codes.shape[0]

    @property
    def in_features(self) -> int:
        return self.codes.shape[1]


@dataclass(slots=True)
class StackedWeight(LinearWeight):
    """Matrices of different layouts, the rows of one below those of the other: a fused projection of mixed types.

    Attributes:
        parts: at least two, of the same in_features, none of them stacked; each has its own bias, or none.
    """

    parts: tuple[LinearWeight, ...]

    @property
    def out_features(self) -> int:
        return sum(part.out_features for part in self.parts)

    @property
    def in_features(self) -> int:
        return self.parts[0].in_features


@dataclass(frozen=True, slots=True)
class RotaryTable:
    """Cosines and sines of every position that the engine may reach.

    Attributes:
        cos: [max_model_len, rotary_dim / 2] float32, the attention factor of the scaling included.
        sin: like `cos`.
    """

    cos: Tensor
    sin: Tensor

    @property
    def rotary_dim(self) -> int:
        """Leading channels of a head that rotate."""
        return 2 * self.cos.shape[1]


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """What one attention block computes with.

    Attributes:
        norm: [hidden_size], weight of the RMSNorm before the block.
        norm_eps: epsilon of that norm and of the query and key norms.
        qkv: the query, key and value rows stacked: (num_heads + 2 * num_kv_heads) * head_dim rows.
        output: hidden_size rows over num_heads * head_dim channels.
        query_norm: [head_dim], RMSNorm of each query head before rotation, or None; `key_norm` alike.
        rotary: the table of the model.
        scale: logit multiplier, mostly 1 / sqrt(head_dim).
        sliding_window: keys a token sees, its own included; None: all.
        soft_cap: bound of the scaled logits, see `Ops.paged_attention`; None: unbounded.
        post_norm: [hidden_size], weight of an RMSNorm over the block's output, before it joins the residual stream;
            None: there is none.
        output_scale: what the block's output is multiplied by before it joins the stream, after `post_norm`.
    """

    norm: Tensor
    norm_eps: float
    qkv: LinearWeight
    output: LinearWeight
    query_norm: Tensor | None
    key_norm: Tensor | None
    rotary: RotaryTable
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int | None
    soft_cap: float | None = None
    post_norm: Tensor | None = None
    output_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class MLPWeights:
    """What one gated feed-forward block computes with.

    Attributes:
        norm: [hidden_size], weight of the RMSNorm before the block.
        norm_eps: its epsilon.
        gate_up: the gate and the up projection stacked: 2 * intermediate_size rows.
        down: hidden_size rows over intermediate_size channels.
        activation: what the gate is put through.
        post_norm: as of `AttentionWeights`; `output_scale` alike.
    """

    norm: Tensor
    norm_eps: float
    gate_up: LinearWeight
    down: LinearWeight
    activation: Activation = "silu"
    post_norm: Tensor | None = None
    output_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """One expert of a mixture.

    Attributes:
        gate_up: the gate and the up projection stacked: 2 * intermediate_size rows.
        down: hidden_size rows over intermediate_size channels.
    """

    gate_up: LinearWeight
    down: LinearWeight


@dataclass(frozen=True, slots=True)
class MixtureWeights:
    """What one mixture of experts computes with.

    Attributes:
        norm: [hidden_size], weight of the RMSNorm before the block.
        norm_eps: its epsilon.
        router: one row an expert, of all experts.
        experts: this rank's, in order.
        first_expert: which of all experts the first of them is.
        num_chosen: experts that compute a token.
        is_renormalized: a token's weights are divided by their sum.
        activation: what gates are put through.
    """

    norm: Tensor
    norm_eps: float
    router: LinearWeight
    experts: tuple[ExpertWeights, ...]
    first_expert: int
    num_chosen: int
    is_renormalized: bool
    activation: Activation = "silu"


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """What lies between a token's id and the row that the output layer reads; of several stages, one stage's part.

    Attributes:
        embedding: rows of hidden_size channels, one a token id from `first_token_id` on; None: a stage before this one
            has it. A dense matrix without rows: other ranks have them all.
        layers: first to last, at least one.
        norm: [hidden_size], weight of the RMSNorm after the last layer; None: a stage after this one has it.
        norm_eps: its epsilon.
        dtype: of activations, the compute dtype.
        embedding_scale: what a token's row is multiplied by.
        first_token_id: of the rows of `embedding`, where ranks divide the vocabulary.
    """

    embedding: LinearWeight | None
    layers: tuple[DecoderLayerWeights, ...]
    norm: Tensor | None
    norm_eps: float
    dtype: torch.dtype
    embedding_scale: float = 1.0
    first_token_id: int = 0


@dataclass(frozen=True, slots=True)
class DecoderLayerWeights:
    """What one decoder layer computes with: attention, then the feed-forward block or a mixture of such."""

    attention: AttentionWeights
    mlp: MLPWeights | MixtureWeights
