"""What lies in ggml's blocks: the scales and the integers, taken out but not yet multiplied.

Each function takes all blocks as one uint8 matrix [num_blocks, block_bytes], vectorized over blocks.

Source: the block structs of ggml, https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

import torch
from torch import Tensor

SUPER_BLOCK = 256  # values of a K-quant block


def half_at(raw: Tensor, offset: int) -> Tensor:
    """[num_blocks, 1] float32: the fp16 that each block holds at a byte offset."""
    return raw[:, offset : offset + 2].contiguous().view(torch.float16).float()


def fifth_bits(raw: Tensor) -> Tensor:
    """[num_blocks, 32] uint8: the bits of four bytes, lowest first."""
    bits = raw.unsqueeze(2) >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.reshape(raw.shape[0], -1)


def nibbles(packed: Tensor) -> Tensor:
    """[num_blocks, 32] uint8: the low nibbles of 16 bytes, then the high ones."""
    return torch.cat((packed & 0x0F, packed >> 4), dim=1)


def k_quant_scales(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale and the minimum of each of a Q4_K or Q5_K block's 8 groups, [num_blocks, 8] float32 both, exact.

    The minimum is subtracted from the values, so that it is rarely negative. Twelve bytes hold eight 6-bit scales and
    eight 6-bit minimums: bytes 0-3 and 4-7 the first four of each in their low six bits, bytes 8-11 the low four bits
    of the last four, whose upper two bits sit on top of bytes 0-7.
    """
    first, second, third = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = torch.cat((first & 0x3F, third & 0x0F | first >> 2 & 0x30), dim=1)
    minimums = torch.cat((second & 0x3F, third >> 4 | second >> 2 & 0x30), dim=1)
    return scales.float() * half_at(raw, 0), minimums.float() * half_at(raw, 2)


def q4_k_codes(raw: Tensor) -> Tensor:
    """[num_blocks, 8, 32] uint8, 0 to 15: 32 bytes hold a group in their low nibbles, the next in their high ones."""
    packed = raw[:, 16:].view(-1, 4, 32)
    return torch.stack((packed & 0x0F, packed >> 4), dim=2).view(-1, 8, 32)


def q5_k_codes(raw: Tensor) -> Tensor:
    """[num_blocks, 8, 32] uint8, 0 to 31."""
    packed = raw[:, 48:].view(-1, 4, 32)
    low = torch.stack((packed & 0x0F, packed >> 4), dim=2).view(-1, 8, 32)
    # Bit g of the 32 high bytes belongs to group g.
    high = raw[:, 16:48].view(-1, 1, 32) >> torch.arange(8, dtype=torch.uint8).view(1, 8, 1) & 1
    return low | high << 4


def q6_k_codes(raw: Tensor) -> Tensor:
    """[num_blocks, 16, 16] uint8, 0 to 63; 32 stands for zero.

    Two halves of 128 values. In each, 64 bytes hold the low nibbles of groups (0, 1) and, above them, of (2, 3), 32
    values a group; 32 bytes hold the upper two bits of all four.
    """
    low = raw[:, :128].view(-1, 2, 1, 64) >> torch.tensor((0, 4), dtype=torch.uint8).view(1, 1, 2, 1) & 0x0F
    high = raw[:, 128:192].view(-1, 2, 1, 32) >> torch.tensor((0, 2, 4, 6), dtype=torch.uint8).view(1, 1, 4, 1) & 3
    return (low.reshape(-1, 2, 4, 32) | high << 4).view(-1, 16, 16)


def q6_k_scales(raw: Tensor) -> Tensor:
    """[num_blocks, 16] float32, exact: the scale of each group of 16 values."""
    return raw[:, 192:208].view(torch.int8).float() * half_at(raw, 208)
