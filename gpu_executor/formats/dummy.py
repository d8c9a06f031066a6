"""A checkpoint that is not there: random weights of the right shapes, to measure how fast a model runs without them.

Their sizes are those of trained weights, not their values: matrices keep the variance of what they multiply, and norms
multiply by one, so that activations stay near one however many layers there are and logits are finite in every dtype.
(A device that multiplies zeros draws less power and runs faster than it ever will with a model.)
"""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from ..kernels.layouts import GROUP_SIZE, DenseWeight, LinearWeight
from .checkpoint_tensor import CheckpointTensor
from .tensor_part import WHOLE_TENSOR, TensorPart

_BIAS_BOUND = 0.02
# Numbers drawn for a tensor; they are repeated to its end, since a CPU draws some 50 million a second and copies
# thousands. A prime: no two rows of a matrix are alike.
_NUM_DRAWN = 1_048_573


def dummy_tensors(places: Iterable[tuple[str, tuple[int, ...]]], dtype: torch.dtype) -> list[CheckpointTensor]:
    """Return a tensor for each place that a model has.

    Args:
        places: canonical names and shapes.
        dtype: that the checkpoint would have.
    """
    return [DummyTensor(name, shape, dtype) for name, shape in places]


class DummyTensor:
    """One random tensor; equal names and shapes give equal numbers on one kind of device.

    Args:
        name: canonical name.
        shape: as torch counts it.
        dtype: that it would be stored in.
    """

    def __init__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.name = name
        self.source = f"--load-format dummy, tensor {name!r}"
        self.shape = shape
        self._dtype = dtype
        self._whole_shape = shape
        self._part = WHOLE_TENSOR

    def sliced(self, part: TensorPart) -> DummyTensor:
        """Return a part, of a whole tensor: the numbers that stand there; see `CheckpointTensor.sliced`."""
        assert self._part.is_whole, "a part is not cut again"
        piece = copy.copy(self)
        piece.shape, piece._part = part.shape_of(self.shape), part
        return piece

    def copy_to(self, destination: Tensor) -> None:
        """Fill `destination` where it is; see `CheckpointTensor.copy_to`."""
        if len(self.shape) == 1 and self.name.endswith(".weight"):
            destination.fill_(1.0)  # a norm
            return
        shape = self._whole_shape
        bound = math.sqrt(3.0 / shape[-1]) if len(shape) > 1 else _BIAS_BOUND
        generator = torch.Generator(destination.device)
        generator.manual_seed(zlib.crc32(self.name.encode()))
        flat, num_drawn = destination.view(-1), min(math.prod(shape), _NUM_DRAWN)
        # A part is drawn beside its place, since its numbers are among others; a whole tensor where it goes.
        drawn = flat[:num_drawn] if self._part.is_whole else flat.new_empty(num_drawn)
        drawn.uniform_(-bound, bound, generator=generator)
        start = 0
        for run in self._runs():
            _repeat(drawn, run.start, flat[start : start + len(run)])
            start += len(run)

    def _runs(self) -> Iterator[range]:
        """Yield where the part's numbers stand in the whole tensor, counted row by row."""
        shape, columns = self._whole_shape or (1,), self._part.columns
        row_size, column_size = math.prod(shape[1:]), math.prod(shape[2:])
        for run in self._part.row_runs(shape[0]):
            if columns is None:
                yield range(run.start * row_size, run.stop * row_size)
                continue
            for row in run:
                begin = row * row_size
                yield range(begin + columns.start * column_size, begin + columns.stop * column_size)

    def read_matrix(self, dtype: torch.dtype | None) -> LinearWeight:
        """Make a dense matrix; see `CheckpointTensor.read_matrix`."""
        weight = torch.empty(self.shape, dtype=dtype or self._dtype)
        self.copy_to(weight)
        return DenseWeight(weight)

    def matrix_bytes(self, dtype: torch.dtype | None, max_scale_group: int = GROUP_SIZE) -> int:
        """Return what a matrix takes; see `CheckpointTensor.matrix_bytes`."""
        return (dtype or self._dtype).itemsize * math.prod(self.shape)


def _repeat(drawn: Tensor, first: int, destination: Tensor) -> None:
    """Write the numbers from the `first` on, which repeat `drawn` without end; `destination` may begin with it."""
    start = 0
    while start < len(destination):
        begin = (first + start) % len(drawn)
        count = min(len(drawn) - begin, len(destination) - start)
        destination[start : start + count] = drawn[begin : begin + count]
        start += count
