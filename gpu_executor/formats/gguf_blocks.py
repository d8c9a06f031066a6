"""What lies in ggml's blocks: the scales and the integers, taken out but not yet multiplied.

Each function takes all blocks as one uint8 matrix [num_blocks, block_bytes], vectorized over blocks.

Source: the block structs of ggml, https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

import torch
from torch import Tensor

SUPER_BLOCK = 256  # values of a K-quant block

# What the 4-bit codes of the IQ4 types stand for: finer steps where trained weights are dense.
_IQ4_VALUES = torch.tensor((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), dtype=torch.int8)


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


def q2_k_codes(raw: Tensor) -> Tensor:
    """[num_blocks, 16, 16] uint8, 0 to 3."""
    return _bit_pairs(raw[:, 16:80]).view(-1, 16, 16)


def q2_k_scales(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale and the minimum of each group of 16, [num_blocks, 16] float32 both, exact.

    The minimum is subtracted. Sixteen bytes hold 4-bit scales in their low halves, 4-bit minimums in their high ones.
    """
    packed = raw[:, :16]
    return (packed & 0x0F).float() * half_at(raw, 80), (packed >> 4).float() * half_at(raw, 82)


def q3_k_codes(raw: Tensor) -> Tensor:
    """[num_blocks, 16, 16] uint8, 0 to 7; 4 stands for zero."""
    # Bit g of the 32 high bytes belongs to the run g of 32 values.
    high = raw[:, :32].unsqueeze(1) >> torch.arange(8, dtype=torch.uint8).view(1, 8, 1) & 1
    return (_bit_pairs(raw[:, 32:96]) | high << 2).view(-1, 16, 16)


def q3_k_scales(raw: Tensor) -> Tensor:
    """[num_blocks, 16] float32, exact: the scale of each group of 16 values.

    Twelve bytes hold sixteen numbers of 6 bits, 32 stands for zero: bytes 0-7 the low four bits of the first eight and,
    above them, of the others; bytes 8-11 the upper two bits, of every fourth in one byte.
    """
    low = raw[:, 96:104].unsqueeze(1) >> torch.tensor((0, 4), dtype=torch.uint8).view(1, 2, 1) & 0x0F
    high = raw[:, 104:108].unsqueeze(1) >> torch.tensor((0, 2, 4, 6), dtype=torch.uint8).view(1, 4, 1) & 3
    scales = low.reshape(-1, 16) | high.reshape(-1, 16) << 4
    return scales.float().sub_(32.0).mul_(half_at(raw, 108))


def iq4_codes(packed: Tensor) -> Tensor:
    """[num_groups, 16] -> [num_groups, 32] int8, -127 to 113: what the nibbles stand for."""
    return _IQ4_VALUES[nibbles(packed).int()]


def iq4_xs_codes(raw: Tensor) -> Tensor:
    """[num_blocks, 8, 32] int8, -127 to 113."""
    return iq4_codes(raw[:, 8:].reshape(-1, 16)).view(-1, 8, 32)


def iq4_xs_scales(raw: Tensor) -> Tensor:
    """[num_blocks, 8] float32, exact: the scale of each group of 32 values.

    Numbers of 6 bits, 32 stands for zero: two bytes hold the upper two bits of all eight, four bytes the low four.
    """
    low = raw[:, 4:8].unsqueeze(2) >> torch.tensor((0, 4), dtype=torch.uint8) & 0x0F
    high = raw[:, 2:4].unsqueeze(2) >> torch.tensor((0, 2, 4, 6), dtype=torch.uint8) & 3
    scales = low.reshape(-1, 8) | high.reshape(-1, 8) << 4
    return scales.float().sub_(32.0).mul_(half_at(raw, 0))


def _bit_pairs(packed: Tensor) -> Tensor:
    """[num_blocks, 64] -> [num_blocks, 8, 32], 0 to 3: 32 bytes hold four runs of 32, the first in the low bits."""
    pairs = packed.reshape(-1, 2, 1, 32) >> torch.tensor((0, 2, 4, 6), dtype=torch.uint8).view(1, 1, 4, 1) & 3
    return pairs.view(-1, 8, 32)
