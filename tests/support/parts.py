"""Parts of stored tensors, checked against the whole: what every format has to hold to."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from pagewire.gpu_executor.formats.checkpoint_tensor import CheckpointTensor
from pagewire.gpu_executor.formats.tensor_part import TensorPart
from pagewire.gpu_executor.kernels.layouts import DenseWeight, LinearWeight
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize
from tests.support.one_layer import unpacked


@st.composite
def parts(draw: st.DrawFn, shape: tuple[int, int]) -> TensorPart:
    """Draw any part of a matrix: up to three runs of rows, and columns that may begin and end anywhere."""
    num_rows, num_columns = shape
    rows = columns = None
    if draw(st.booleans()):
        ends = sorted(draw(st.sets(st.integers(0, num_rows), min_size=2, max_size=6)))
        rows = tuple(range(*pair) for pair in zip(ends[0::2], ends[1::2], strict=False))
    if draw(st.booleans()):
        step = draw(st.sampled_from([1, 8, 16, 32, 64, 128]))
        ends = sorted(draw(st.sets(st.integers(0, num_columns // step), min_size=2, max_size=2)))
        columns = range(ends[0] * step, ends[1] * step)
    return TensorPart(rows, columns)


def part_of(matrix: Tensor, part: TensorPart) -> Tensor:
    """Return a part of a matrix in memory."""
    rows = torch.cat([torch.arange(run.start, run.stop) for run in part.row_runs(len(matrix))])
    columns = part.column_run(matrix.shape[1])
    return matrix[rows][:, columns.start : columns.stop]


def check_part(tensor: CheckpointTensor, part: TensorPart) -> LinearWeight:
    """Compare a part with the whole, number by number, however it is read, and return it as a matrix.

    What its layout holds is the whole's; what has become a plain matrix is what the file says.
    """
    piece = tensor.sliced(part)
    assert (piece.name, piece.source) == (tensor.name, tensor.source)
    assert piece.shape == part.shape_of(tensor.shape)
    expected = part_of(unpacked(tensor), part)
    assert torch.equal(unpacked(piece), expected)
    whole, matrix = tensor.read_matrix(None), piece.read_matrix(None)
    assert (matrix.out_features, matrix.in_features) == piece.shape
    is_plain = isinstance(matrix, DenseWeight)
    num_values = matrix.out_features * matrix.in_features
    if is_plain and not isinstance(whole, DenseWeight):
        assert torch.equal(dequantize(matrix), expected)
        assert piece.matrix_bytes(torch.bfloat16) == 2 * num_values
    else:
        assert type(matrix) is type(whole)
        assert torch.equal(dequantize(matrix), part_of(dequantize(whole), part))
        assert is_plain or piece.matrix_bytes(torch.float32) < 2 * num_values
    return matrix
