"""The canonical layouts that kernels know: what a weight looks like after load, whatever file it came from.

A new layout (4-bit grouped, 8-bit, fp8) is one more struct here, one more member of `LinearWeight`, and one more case
in each backend's `linear`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class DenseWeight:
    """A plain matrix.

    Attributes:
        weight: [out_features, in_features], compute dtype, contiguous.
        bias: [out_features], compute dtype, or None.
    """

    weight: Tensor
    bias: Tensor | None = None

    @property
    def out_features(self) -> int:
        """Rows of the matrix: channels that a product with it gives."""
        return self.weight.shape[0]


# Every layout that a linear product or an embedding may meet.
LinearWeight = DenseWeight


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
        scale: logit multiplier, 1 / sqrt(head_dim).
        sliding_window: keys a token sees, its own included; None: all.
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


@dataclass(frozen=True, slots=True)
class MLPWeights:
    """What one gated feed-forward block computes with.

    Attributes:
        norm: [hidden_size], weight of the RMSNorm before the block.
        norm_eps: its epsilon.
        gate_up: the gate and the up projection stacked: 2 * intermediate_size rows.
        down: hidden_size rows over intermediate_size channels.
    """

    norm: Tensor
    norm_eps: float
    gate_up: LinearWeight
    down: LinearWeight
