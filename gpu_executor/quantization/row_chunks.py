"""Matrices some rows at a time: temporaries of a rounding are several times what they are made of, in float32."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

CHUNK_VALUES = 1 << 22  # at once: temporaries stay at some 50 MB a thread


def row_chunks(matrix: Tensor, num_values: int = CHUNK_VALUES) -> Iterator[Tensor]:
    """Yield some rows at a time, in float32; all of them together are the matrix.

    Args:
        matrix: [rows, columns] of any float dtype; without rows, one chunk without any comes.
        num_values: most numbers of a chunk, but it has a row at least.
    """
    num_rows = max(1, num_values // max(1, matrix.shape[1]))
    for first in range(0, max(1, matrix.shape[0]), num_rows):
        yield matrix[first : first + num_rows].float()
