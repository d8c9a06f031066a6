"""Packs values into ggml's K-quant blocks, which the gguf package only unpacks.

Round-to-nearest with plain ranges, not ggml's search for the best scales: the blocks are as valid, only less accurate.

Source: block_q4_K, block_q5_K and block_q6_K in ggml's ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_BLOCK = 256


def pack_q4_k(values: Floats) -> Bytes:
    """Pack rows of float32 [rows, columns], columns a multiple of 256, into uint8 [rows, columns / 256 * 144]."""
    scales, quants = _quantize_with_minimum(values, levels=15)
    return rows_of(values, [scales, _nibble_pairs(quants)])


def pack_q5_k(values: Floats) -> Bytes:
    """Pack rows of float32 [rows, columns], columns a multiple of 256, into uint8 [rows, columns / 256 * 176]."""
    scales, quants = _quantize_with_minimum(values, levels=31)
    # Bit s of byte i is the fifth bit of value i of sub-block s.
    bits = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    high = np.bitwise_or.reduce((quants >> np.uint8(4)) << bits, axis=1)
    return rows_of(values, [scales, high, _nibble_pairs(quants & np.uint8(15))])


def pack_q6_k(values: Floats) -> Bytes:
    """Pack rows of float32 [rows, columns], columns a multiple of 256, into uint8 [rows, columns / 256 * 210]."""
    groups = super_blocks(values).reshape(-1, 16, 16)
    group_scale = np.abs(groups).max(axis=2) / 31  # [blocks, 16]
    block_scale = (group_scale.max(axis=1, keepdims=True) / 127).astype(np.float16)
    stored = block_scale.astype(np.float32)
    scales = np.rint(divide(group_scale, stored)).clip(0, 127).astype(np.int8)
    steps = (stored * scales)[:, :, None]
    quants = (np.rint(divide(groups, steps)).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    # Each half of a block: 64 bytes of low nibbles (values 0-63 low, 64-127 high), 32 bytes of four upper bit pairs.
    low = (quants & np.uint8(15)).reshape(-1, 2, 2, 64)
    low_bytes = (low[:, :, 0] | low[:, :, 1] << np.uint8(4)).reshape(-1, 128)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    high_bytes = np.bitwise_or.reduce((quants >> np.uint8(4)) << shifts, axis=2).reshape(-1, 64)
    return rows_of(values, [low_bytes, high_bytes, scales.view(np.uint8), block_scale.view(np.uint8)])


K_PACKERS: dict[str, Callable[[Floats], Bytes]] = {"Q4_K": pack_q4_k, "Q5_K": pack_q5_k, "Q6_K": pack_q6_k}


def _quantize_with_minimum(values: Floats, *, levels: int) -> tuple[Bytes, Bytes]:
    """Return the 16 bytes of scales of each block, and its quants [blocks, 8, 32]."""
    groups = super_blocks(values).reshape(-1, 8, 32)
    minimum = np.maximum(-groups.min(axis=2), 0)  # subtracted, so that it is never negative
    scale = (groups.max(axis=2) + minimum).clip(0) / levels
    block_scale = (scale.max(axis=1, keepdims=True) / 63).astype(np.float16)
    block_minimum = (minimum.max(axis=1, keepdims=True) / 63).astype(np.float16)
    six_bit_scale = np.rint(divide(scale, block_scale.astype(np.float32))).clip(0, 63).astype(np.uint8)
    six_bit_minimum = np.rint(divide(minimum, block_minimum.astype(np.float32))).clip(0, 63).astype(np.uint8)
    steps = (block_scale.astype(np.float32) * six_bit_scale)[:, :, None]
    offsets = (block_minimum.astype(np.float32) * six_bit_minimum)[:, :, None]
    quants = np.rint(divide(groups + offsets, steps)).clip(0, levels).astype(np.uint8)
    packed = _pack_six_bit(six_bit_scale, six_bit_minimum)
    return np.concatenate([block_scale.view(np.uint8), block_minimum.view(np.uint8), packed], axis=1), quants


def _pack_six_bit(scales: Bytes, minimums: Bytes) -> Bytes:
    """Pack 8 scales and 8 minimums of 6 bits into 12 bytes: the first four of each carry the others' upper bits."""
    upper_scales, upper_minimums = scales[:, 4:] >> np.uint8(4), minimums[:, 4:] >> np.uint8(4)
    return np.concatenate(
        [
            scales[:, :4] | upper_scales << np.uint8(6),
            minimums[:, :4] | upper_minimums << np.uint8(6),
            (scales[:, 4:] & np.uint8(15)) | (minimums[:, 4:] & np.uint8(15)) << np.uint8(4),
        ],
        axis=1,
    )


def _nibble_pairs(quants: Bytes) -> Bytes:
    """Pack quants [blocks, 8, 32] of 4 bits: sub-blocks 2i and 2i + 1 share 32 bytes."""
    return (quants[:, 0::2] | quants[:, 1::2] << np.uint8(4)).reshape(-1, 128)


def super_blocks(values: Floats) -> Floats:
    """Return [rows, columns] as [blocks, 256].

    Raises:
        ValueError: if rows don't divide into blocks.
    """
    columns = values.shape[1]
    if columns % _BLOCK:
        raise ValueError(f"K-quants hold blocks of {_BLOCK} values of a row; {columns} is not a multiple")
    return values.reshape(-1, _BLOCK)


def divide(numerator: Floats, denominator: Floats) -> Floats:
    """Return the quotient, 0 where the denominator is."""
    result: Floats = np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator != 0)
    return result


def rows_of(values: Floats, parts: list[Bytes]) -> Bytes:
    """Return blocks put together of parts [blocks, bytes], as rows like those of `values`."""
    return np.ascontiguousarray(np.concatenate(parts, axis=1)).reshape(len(values), -1)
