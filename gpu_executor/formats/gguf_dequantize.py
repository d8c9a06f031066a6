"""Unpacking ggml's block types to float32, vectorized over blocks, bit for bit as ggml does it.

A tensor is a run of blocks; a block is a struct of fp16 scales, packed small scales and packed integers. Each function
below takes all blocks as one uint8 matrix [num_blocks, block_bytes] and returns [num_blocks, block_values] float32.

Source: the block structs of ggml, https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pagewire.checkpoint.ggml_types import GGMLType

from .gguf_blocks import (
    SUPER_BLOCK,
    fifth_bits,
    half_at,
    iq4_codes,
    iq4_xs_codes,
    iq4_xs_scales,
    k_quant_scales,
    nibbles,
    q2_k_codes,
    q2_k_scales,
    q3_k_codes,
    q3_k_scales,
    q4_k_codes,
    q5_k_codes,
    q6_k_codes,
    q6_k_scales,
)


def dequantize(raw: Tensor, ggml_type: GGMLType) -> Tensor:
    """Unpack blocks.

    Args:
        raw: [num_blocks, block_bytes] uint8, contiguous.
        ggml_type: one of `SUPPORTED_TYPES`.

    Returns:
        [num_blocks, block_values] float32.
    """
    return _DEQUANTIZERS[ggml_type](raw)


def _f32(raw: Tensor) -> Tensor:
    return raw.view(torch.float32)


def _f16(raw: Tensor) -> Tensor:
    return raw.view(torch.float16).float()


def _bf16(raw: Tensor) -> Tensor:
    return raw.view(torch.bfloat16).float()


def _q4_0(raw: Tensor) -> Tensor:
    return nibbles(raw[:, 2:]).float().sub_(8.0).mul_(half_at(raw, 0))


def _q4_1(raw: Tensor) -> Tensor:
    return nibbles(raw[:, 4:]).float().mul_(half_at(raw, 0)).add_(half_at(raw, 2))


def _q5_0(raw: Tensor) -> Tensor:
    codes = nibbles(raw[:, 6:]) | fifth_bits(raw[:, 2:6]) << 4
    return codes.float().sub_(16.0).mul_(half_at(raw, 0))


def _q5_1(raw: Tensor) -> Tensor:
    codes = nibbles(raw[:, 8:]) | fifth_bits(raw[:, 4:8]) << 4
    return codes.float().mul_(half_at(raw, 0)).add_(half_at(raw, 2))


def _q8_0(raw: Tensor) -> Tensor:
    return raw[:, 2:].view(torch.int8).float().mul_(half_at(raw, 0))


def _q2_k(raw: Tensor) -> Tensor:
    return _scaled(q2_k_codes(raw), q2_k_scales(raw))


def _q3_k(raw: Tensor) -> Tensor:
    values = q3_k_codes(raw).float().sub_(4.0).mul_(q3_k_scales(raw).unsqueeze(2))
    return values.view(-1, SUPER_BLOCK)


def _q4_k(raw: Tensor) -> Tensor:
    return _scaled(q4_k_codes(raw), k_quant_scales(raw))


def _q5_k(raw: Tensor) -> Tensor:
    return _scaled(q5_k_codes(raw), k_quant_scales(raw))


def _q6_k(raw: Tensor) -> Tensor:
    values = q6_k_codes(raw).float().sub_(32.0).mul_(q6_k_scales(raw).unsqueeze(2))
    return values.view(-1, SUPER_BLOCK)


def _iq4_nl(raw: Tensor) -> Tensor:
    return iq4_codes(raw[:, 2:]).float().mul_(half_at(raw, 0))


def _iq4_xs(raw: Tensor) -> Tensor:
    return iq4_xs_codes(raw).float().mul_(iq4_xs_scales(raw).unsqueeze(2)).view(-1, SUPER_BLOCK)


def _scaled(codes: Tensor, scales_and_minimums: tuple[Tensor, Tensor]) -> Tensor:
    scales, minimums = scales_and_minimums
    return codes.float().mul_(scales.unsqueeze(2)).sub_(minimums.unsqueeze(2)).view(-1, SUPER_BLOCK)


_DEQUANTIZERS: dict[GGMLType, Callable[[Tensor], Tensor]] = {
    GGMLType.F32: _f32,
    GGMLType.F16: _f16,
    GGMLType.BF16: _bf16,
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q2_K: _q2_k,
    GGMLType.Q3_K: _q3_k,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q5_K: _q5_k,
    GGMLType.Q6_K: _q6_k,
    GGMLType.IQ4_NL: _iq4_nl,
    GGMLType.IQ4_XS: _iq4_xs,
}

SUPPORTED_TYPES = frozenset(_DEQUANTIZERS)
