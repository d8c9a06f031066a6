"""Packs values into ggml's blocks of 4 bits and fewer, which the gguf package only unpacks.

As `k_quants`: round-to-nearest with plain ranges, valid blocks that are less accurate than ggml's.

Source: block_q2_K, block_q3_K, block_iq4_nl, block_iq4_xs and kvalues_iq4nl in ggml's ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tools.tiny_model.k_quants import K_PACKERS, Bytes, Floats, divide, rows_of, super_blocks

_GROUP = 32
_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
_PAIR_SHIFTS = np.array([0, 2, 4, 6], dtype=np.uint8)


def pack_q2_k(values: Floats) -> Bytes:
    """Pack rows of float32 [rows, columns], columns a multiple of 256, into uint8 [rows, columns / 256 * 84]."""
    groups = super_blocks(values).reshape(-1, 16, 16)
    minimum = np.maximum(-groups.min(axis=2), 0)  # subtracted, so that it is never negative
    scale = (groups.max(axis=2) + minimum).clip(0) / 3
    block_scale = (scale.max(axis=1, keepdims=True) / 15).astype(np.float16)
    block_minimum = (minimum.max(axis=1, keepdims=True) / 15).astype(np.float16)
    four_bit_scale = np.rint(divide(scale, block_scale.astype(np.float32))).clip(0, 15).astype(np.uint8)
    four_bit_minimum = np.rint(divide(minimum, block_minimum.astype(np.float32))).clip(0, 15).astype(np.uint8)
    steps = (block_scale.astype(np.float32) * four_bit_scale)[:, :, None]
    offsets = (block_minimum.astype(np.float32) * four_bit_minimum)[:, :, None]
    quants = np.rint(divide(groups + offsets, steps)).clip(0, 3).astype(np.uint8)
    scales = four_bit_scale | four_bit_minimum << np.uint8(4)
    return rows_of(values, [scales, _bit_pairs(quants), block_scale.view(np.uint8), block_minimum.view(np.uint8)])


def pack_q3_k(values: Floats) -> Bytes:
    """Pack rows of float32 [rows, columns], columns a multiple of 256, into uint8 [rows, columns / 256 * 110]."""
    groups = super_blocks(values).reshape(-1, 16, 16)
    group_scale = np.abs(groups).max(axis=2) / 4
    block_scale = (group_scale.max(axis=1, keepdims=True) / 31).astype(np.float16)
    stored = block_scale.astype(np.float32)
    six_bit = (np.rint(divide(group_scale, stored)).clip(0, 31) + 32).astype(np.uint8)
    steps = (stored * (six_bit - np.float32(32)))[:, :, None]
    quants = (np.rint(divide(groups, steps)).clip(-4, 3) + 4).astype(np.uint8)
    # Bit g of byte i is the third bit of value 32 g + i.
    bits = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    high = np.bitwise_or.reduce((quants >> np.uint8(2)).reshape(-1, 8, 32) << bits, axis=1)
    low_scales = (six_bit[:, :8] & np.uint8(15)) | (six_bit[:, 8:] & np.uint8(15)) << np.uint8(4)
    upper = (six_bit >> np.uint8(4)).reshape(-1, 4, 4) << _PAIR_SHIFTS.reshape(1, 4, 1)
    scales = np.concatenate([low_scales, np.bitwise_or.reduce(upper, axis=1)], axis=1)
    return rows_of(values, [high, _bit_pairs(quants & np.uint8(3)), scales, block_scale.view(np.uint8)])


def pack_iq4_nl(values: Floats) -> Bytes:
    """Pack rows of float32 [rows, columns], columns a multiple of 32, into uint8 [rows, columns / 32 * 18]."""
    if values.shape[1] % _GROUP:
        raise ValueError(f"IQ4_NL holds blocks of {_GROUP} values of a row; {values.shape[1]} is not a multiple")
    groups = values.reshape(-1, _GROUP)
    scale = (np.abs(groups).max(axis=1, keepdims=True) / 113).astype(np.float16)
    return rows_of(values, [scale.view(np.uint8), _nearest(groups, scale.astype(np.float32))])


def pack_iq4_xs(values: Floats) -> Bytes:
    """Pack rows of float32 [rows, columns], columns a multiple of 256, into uint8 [rows, columns / 256 * 136]."""
    groups = super_blocks(values).reshape(-1, 8, _GROUP)
    group_scale = np.abs(groups).max(axis=2) / 113
    block_scale = (group_scale.max(axis=1, keepdims=True) / 31).astype(np.float16)
    stored = block_scale.astype(np.float32)
    six_bit = (np.rint(divide(group_scale, stored)).clip(0, 31) + 32).astype(np.uint8)
    steps = (stored * (six_bit - np.float32(32))).reshape(-1, 1)
    upper = (six_bit >> np.uint8(4)).reshape(-1, 2, 4) << _PAIR_SHIFTS.reshape(1, 1, 4)
    low = (six_bit[:, 0::2] & np.uint8(15)) | (six_bit[:, 1::2] & np.uint8(15)) << np.uint8(4)
    codes = _nearest(groups.reshape(-1, _GROUP), steps).reshape(-1, 128)
    return rows_of(values, [block_scale.view(np.uint8), np.bitwise_or.reduce(upper, axis=2), low, codes])


PACKERS: dict[str, Callable[[Floats], Bytes]] = {
    **K_PACKERS,
    "Q2_K": pack_q2_k,
    "Q3_K": pack_q3_k,
    "IQ4_NL": pack_iq4_nl,
    "IQ4_XS": pack_iq4_xs,
}
"""What the gguf package can't pack, by the type's name."""


def _bit_pairs(quants: Bytes) -> Bytes:
    """Pack quants of 2 bits [blocks, 16, 16]: four runs of 32 values share 32 bytes, the first in the low bits."""
    shifted = quants.reshape(-1, 2, 4, 32) << _PAIR_SHIFTS.reshape(1, 1, 4, 1)
    packed: Bytes = np.bitwise_or.reduce(shifted, axis=2).reshape(-1, 64)
    return packed


def _nearest(groups: Floats, scale: Floats) -> Bytes:
    """Pack [groups, 32] at scales [groups, 1]: values i and i + 16 share a byte."""
    distances = np.abs(divide(groups, np.broadcast_to(scale, groups.shape))[:, :, None] - _IQ4_VALUES)
    codes: Bytes = distances.argmin(axis=2).astype(np.uint8)
    packed: Bytes = codes[:, :16] | codes[:, 16:] << np.uint8(4)
    return packed
