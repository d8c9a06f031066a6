"""How the weights of a linear layer may be packed in a safetensors checkpoint: one struct a packing.

A scheme says what a reader needs beyond the tensors themselves. Groups run along input channels; `group_size` None: one
group a row, as long as it is.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Fp8Granularity = Literal["tensor", "channel", "block"]


class _Scheme(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Shared struct options; not a place for fields."""


class GPTQScheme(_Scheme, frozen=True, kw_only=True):
    """`qweight`, `qzeros`, `scales` and `g_idx`, as GPTQ tools write them.

    Attributes:
        bits: of a code, 4 or 8.
        group_size: input channels that share a scale and a zero point.
        is_symmetric: every zero point is half the range, 2^(bits - 1).
        zero_offset: what the stored zero points lack: 1 in the first version of the format, 0 in the second; None: the
            checkpoint does not say.
    """

    bits: int
    group_size: int | None
    is_symmetric: bool
    zero_offset: int | None


class AWQScheme(_Scheme, frozen=True, kw_only=True):
    """`qweight`, `qzeros` and `scales` in AWQ's GEMM order, 4 bits.

    Attributes:
        group_size: input channels that share a scale and a zero point.
    """

    group_size: int | None


class Fp8Scheme(_Scheme, frozen=True, kw_only=True):
    """`weight` in float8_e4m3fn, and its scales.

    Attributes:
        granularity: what a scale belongs to: the whole matrix (or a row, which some files do not tell from it but by
            the shape), a row, or a block.
        block_shape: rows and columns of a block; None unless scales are by block.
        has_static_activations: the checkpoint holds an `input_scale` too.
    """

    granularity: Fp8Granularity
    block_shape: tuple[int, int] | None = None
    has_static_activations: bool = False


class Int8Scheme(_Scheme, frozen=True, kw_only=True):
    """`weight` in int8, and its scales (compressed-tensors' "int-quantized").

    Attributes:
        group_size: input channels that share a scale; None: a row, or (by the shape of the scales) the whole matrix.
        is_symmetric: there are no zero points.
        has_static_activations: the checkpoint holds an `input_scale` too.
        has_permutation: channels are given to groups by a `weight_g_idx`.
    """

    group_size: int | None
    is_symmetric: bool
    has_static_activations: bool = False
    has_permutation: bool = False


class PackedIntScheme(_Scheme, frozen=True, kw_only=True):
    """`weight_packed`, `weight_scale`, `weight_shape` (compressed-tensors' "pack-quantized").

    Attributes:
        bits: of a code, 4 or 8.
        group_size: input channels that share a scale.
        is_symmetric: there are no zero points.
        has_permutation: channels are given to groups by a `weight_g_idx`.
    """

    bits: int
    group_size: int | None
    is_symmetric: bool
    has_permutation: bool = False


class RoundedScheme(_Scheme, frozen=True, kw_only=True):
    """Plain matrices that are rounded while they are loaded.

    Attributes:
        to: the layout that they are rounded to.
    """

    to: Literal["int8", "fp8"]


Scheme = GPTQScheme | AWQScheme | Fp8Scheme | Int8Scheme | PackedIntScheme | RoundedScheme
