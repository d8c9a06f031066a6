"""The storage types of GGUF tensors: their names, and how many bytes a block of values takes.

Every type that a file in the wild may carry is listed, not only those that the executor can load: a loader refuses a
type by its name, and the tensor table can be checked against the file's size whatever the types are.
"""

from __future__ import annotations

import enum


class GGMLType(enum.IntEnum):
    """A tensor's storage type, by ggml's number."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    Q4_0_4_4 = 31
    Q4_0_4_8 = 32
    Q4_0_8_8 = 33
    TQ1_0 = 34
    TQ2_0 = 35
    IQ4_NL_4_4 = 36
    IQ4_NL_4_8 = 37
    IQ4_NL_8_8 = 38
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41

    @property
    def block_values(self) -> int:
        """Values that one block holds; a tensor's rows are whole blocks."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes that one block takes."""
        return _BLOCKS[self][1]


# (values, bytes) of a block. The sums follow the block structs: fp16 scales first, then packed scales, then quants.
_BLOCKS: dict[GGMLType, tuple[int, int]] = {
    GGMLType.F32: (1, 4),
    GGMLType.F16: (1, 2),
    GGMLType.BF16: (1, 2),
    GGMLType.F64: (1, 8),
    GGMLType.I8: (1, 1),
    GGMLType.I16: (1, 2),
    GGMLType.I32: (1, 4),
    GGMLType.I64: (1, 8),
    GGMLType.Q4_0: (32, 2 + 16),
    GGMLType.Q4_1: (32, 4 + 16),
    GGMLType.Q5_0: (32, 2 + 4 + 16),
    GGMLType.Q5_1: (32, 4 + 4 + 16),
    GGMLType.Q8_0: (32, 2 + 32),
    GGMLType.Q8_1: (32, 4 + 32),
    GGMLType.Q2_K: (256, 4 + 16 + 64),
    GGMLType.Q3_K: (256, 2 + 12 + 32 + 64),
    GGMLType.Q4_K: (256, 4 + 12 + 128),
    GGMLType.Q5_K: (256, 4 + 12 + 32 + 128),
    GGMLType.Q6_K: (256, 2 + 16 + 64 + 128),
    GGMLType.Q8_K: (256, 4 + 32 + 256),
    GGMLType.IQ2_XXS: (256, 2 + 64),
    GGMLType.IQ2_XS: (256, 2 + 8 + 64),
    GGMLType.IQ2_S: (256, 2 + 16 + 64),
    GGMLType.IQ3_XXS: (256, 2 + 32 + 64),
    GGMLType.IQ3_S: (256, 2 + 4 + 8 + 32 + 64),
    GGMLType.IQ1_S: (256, 2 + 16 + 32),
    GGMLType.IQ1_M: (256, 8 + 16 + 32),
    GGMLType.IQ4_NL: (32, 2 + 16),
    GGMLType.IQ4_XS: (256, 2 + 2 + 4 + 128),
    GGMLType.Q4_0_4_4: (32, 2 + 16),
    GGMLType.Q4_0_4_8: (32, 2 + 16),
    GGMLType.Q4_0_8_8: (32, 2 + 16),
    GGMLType.IQ4_NL_4_4: (32, 2 + 16),
    GGMLType.IQ4_NL_4_8: (32, 2 + 16),
    GGMLType.IQ4_NL_8_8: (32, 2 + 16),
    GGMLType.TQ1_0: (256, 2 + 52),
    GGMLType.TQ2_0: (256, 2 + 64),
    GGMLType.MXFP4: (32, 1 + 16),
    GGMLType.NVFP4: (64, 4 + 32),
    GGMLType.Q1_0: (128, 2 + 16),
}
