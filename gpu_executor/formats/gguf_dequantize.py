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

_SUPER_BLOCK = 256  # values of a K-quant block


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
    scale, packed = _half(raw, 0), raw[:, 2:]
    return _nibbles(packed).sub_(8.0).mul_(scale)


def _q4_1(raw: Tensor) -> Tensor:
    scale, minimum, packed = _half(raw, 0), _half(raw, 2), raw[:, 4:]
    return _nibbles(packed).mul_(scale).add_(minimum)


def _q5_0(raw: Tensor) -> Tensor:
    scale, high, packed = _half(raw, 0), _bits(raw[:, 2:6]), raw[:, 6:]
    return _nibbles(packed).add_(high, alpha=16.0).sub_(16.0).mul_(scale)


def _q5_1(raw: Tensor) -> Tensor:
    scale, minimum, high, packed = _half(raw, 0), _half(raw, 2), _bits(raw[:, 4:8]), raw[:, 8:]
    return _nibbles(packed).add_(high, alpha=16.0).mul_(scale).add_(minimum)


def _q8_0(raw: Tensor) -> Tensor:
    return raw[:, 2:].view(torch.int8).float().mul_(_half(raw, 0))


def _q4_k(raw: Tensor) -> Tensor:
    scales, minimums = _packed_scales(raw)
    # 32 bytes hold two groups of 32 values: the low nibbles, then the high ones.
    packed = raw[:, 16:].view(-1, 4, 32)
    quants = torch.stack((packed & 0x0F, packed >> 4), dim=2).view(-1, 8, 32).float()
    return quants.mul_(scales).sub_(minimums).view(-1, _SUPER_BLOCK)


def _q5_k(raw: Tensor) -> Tensor:
    scales, minimums = _packed_scales(raw)
    packed = raw[:, 48:].view(-1, 4, 32)
    low = torch.stack((packed & 0x0F, packed >> 4), dim=2).view(-1, 8, 32)
    # Bit g of the 32 high bytes belongs to group g.
    high = raw[:, 16:48].view(-1, 1, 32) >> torch.arange(8, dtype=torch.uint8).view(1, 8, 1) & 1
    return (low | high << 4).float().mul_(scales).sub_(minimums).view(-1, _SUPER_BLOCK)


def _q6_k(raw: Tensor) -> Tensor:
    # Two halves of 128 values. In each, 64 bytes hold the low nibbles of groups (0, 1) and, above them, of (2, 3), 32
    # values a group; 32 bytes hold the upper two bits of all four.
    low = raw[:, :128].view(-1, 2, 1, 64) >> torch.tensor((0, 4), dtype=torch.uint8).view(1, 1, 2, 1) & 0x0F
    high = raw[:, 128:192].view(-1, 2, 1, 32) >> torch.tensor((0, 2, 4, 6), dtype=torch.uint8).view(1, 1, 4, 1) & 3
    quants = (low.reshape(-1, 2, 4, 32) | high << 4).float().sub_(32.0)
    scales = raw[:, 192:208].view(torch.int8).float() * raw[:, 208:210].contiguous().view(torch.float16).float()
    return quants.view(-1, 16, 16).mul_(scales.unsqueeze(2)).view(-1, _SUPER_BLOCK)


def _half(raw: Tensor, offset: int) -> Tensor:
    """[num_blocks, 1] float32: the fp16 that each block holds at a byte offset."""
    return raw[:, offset : offset + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """[num_blocks, 32] float32: the low nibbles of 16 bytes, then the high ones."""
    values = torch.empty(packed.shape[0], 2, packed.shape[1], dtype=torch.float32)
    values[:, 0] = packed & 0x0F
    values[:, 1] = packed >> 4
    return values.view(packed.shape[0], -1)


def _bits(raw: Tensor) -> Tensor:
    """[num_blocks, 32] uint8: the bits of four bytes, lowest first."""
    bits = raw.unsqueeze(2) >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.reshape(raw.shape[0], -1)


def _packed_scales(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale and the minimum of each of a super block's 8 groups, [num_blocks, 8, 1] float32 both.

    Twelve bytes hold eight 6-bit scales and eight 6-bit minimums: bytes 0-3 and 4-7 the first four of each in their low
    six bits, bytes 8-11 the low four bits of the last four, whose upper two bits sit on top of bytes 0-7.
    """
    first, second, third = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = torch.cat((first & 0x3F, third & 0x0F | first >> 2 & 0x30), dim=1)
    minimums = torch.cat((second & 0x3F, third >> 4 | second >> 2 & 0x30), dim=1)
    return (scales.float() * _half(raw, 0)).unsqueeze(2), (minimums.float() * _half(raw, 2)).unsqueeze(2)


_DEQUANTIZERS: dict[GGMLType, Callable[[Tensor], Tensor]] = {
    GGMLType.F32: _f32,
    GGMLType.F16: _f16,
    GGMLType.BF16: _bf16,
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q5_K: _q5_k,
    GGMLType.Q6_K: _q6_k,
}

SUPPORTED_TYPES = frozenset(_DEQUANTIZERS)
