"""Launch choices of the products that torch does not compute: quantized weights; dense ones under --batch-invariant.

A product for few rows is as fast as its weights come from memory. What it needs is bytes under way: about 25 KB a
multiprocessor of an H200 (4.8 TB/s times 0.7 us, over 132), so several programs each, each with several loads ahead.
Where the matrix has too few rows for that, its channels are split, and the parts' sums added in their order.

Shape numbers: `num_rows` of activations, `out_features` of the weight. Under --batch-invariant every product is
launched as one of `INVARIANT_ROWS` rows would be, so that no choice depends on the batch.
"""

from __future__ import annotations

from .row import LaunchRow

INVARIANT_ROWS = 64

UNPACK_ROWS = 512
"""Rows of activations above which a quantized weight is unpacked: at 512 rows an 8,192 x 8,192 product takes some 90 us
of an H100's arithmetic, and unpacking writes and reads 128 MB, about as long. Unmeasured."""

UNPACK_NUMBERS = 1 << 26
"""Numbers of a weight that are unpacked at a time: 128 MB of 16 bits, which still keep a dense product busy.
Unmeasured."""

INVARIANT_BLOCK = 2048
"""Rows of a product with fixed tiles at a time: four sums of 8,192 channels take 256 MB, and 4,096 channels of that
many activations 16 MB, which a GPU's second-level cache holds while each tile of the weight passes by. Unmeasured."""

QUANTIZED_MATMUL = (
    LaunchRow(
        kernel="quantized_matmul",
        at_most={"num_rows": 16, "out_features": 8192},
        constants={"BLOCK_N": 64, "BLOCK_M": 16, "NUM_SPLITS": 4},
        num_warps=4,
        num_stages=4,
        reason="decode, small matrix: 4,096 rows are 256 programs of 8 KB under way each",
    ),
    LaunchRow(
        kernel="quantized_matmul",
        at_most={"num_rows": 16},
        constants={"BLOCK_N": 128, "BLOCK_M": 16, "NUM_SPLITS": 1},
        num_warps=8,
        num_stages=4,
        reason="decode, large matrix: activations are read once for 128 rows of it; 28,672 rows are 224 programs;"
        " each of 8 warps unpacks 16 rows of the matrix, and those of 4 ran out of registers on an A100",
    ),
    LaunchRow(
        kernel="quantized_matmul",
        at_most={"num_rows": 64, "out_features": 8192},
        constants={"BLOCK_N": 64, "BLOCK_M": 64, "NUM_SPLITS": 4},
        num_warps=4,
        num_stages=3,
        reason="decode of larger batches: one tile holds all rows, so that a weight is unpacked once;"
        " 4 warps, as 8 would share the 64 rows of the matrix, and unpack each twice",
    ),
    LaunchRow(
        kernel="quantized_matmul",
        at_most={"num_rows": 64},
        constants={"BLOCK_N": 128, "BLOCK_M": 64, "NUM_SPLITS": 1},
        num_warps=8,
        num_stages=3,
        reason="likewise, large matrix; its sums and a step's are 64 registers of a thread, with 4 warps they were 128",
    ),
    LaunchRow(
        kernel="quantized_matmul",
        at_most={},
        constants={"BLOCK_N": 128, "BLOCK_M": 128, "NUM_SPLITS": 1},
        num_warps=8,
        num_stages=2,
        reason="up to 512 rows: unpacking a weight costs about as much as multiplying it by 64 rows",
    ),
)

DENSE_MATMUL = (
    LaunchRow(
        kernel="dense_matmul",
        at_most={"out_features": 8192},
        constants={"BLOCK_N": 64, "BLOCK_M": 64, "BLOCK_K": 64, "NUM_SPLITS": 4},
        num_warps=4,
        num_stages=3,
        reason="4,096 rows are 256 programs for a decode; 32 KB under way each",
    ),
    LaunchRow(
        kernel="dense_matmul",
        at_most={},
        constants={"BLOCK_N": 128, "BLOCK_M": 64, "BLOCK_K": 64, "NUM_SPLITS": 1},
        num_warps=4,
        num_stages=3,
        reason="72 KB of tiles: three programs a multiprocessor on an H100, one on an L40S",
    ),
)

SPLIT_SUM = (
    LaunchRow(
        kernel="split_sum",
        at_most={},
        constants={"BLOCK_SIZE": 512},
        num_warps=4,
        num_stages=1,
        reason="4 channels a thread are one 16-byte load of each part",
    ),
)

DEQUANTIZE = (
    LaunchRow(
        kernel="dequantize",
        at_most={},
        constants={"BLOCK_N": 64},
        num_warps=4,
        num_stages=1,
        reason="64 rows of 64 channels: a thread unpacks 32",
    ),
)

ROWS: tuple[LaunchRow, ...] = QUANTIZED_MATMUL + DENSE_MATMUL + SPLIT_SUM + DEQUANTIZE
