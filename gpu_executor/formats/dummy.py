"""A checkpoint that is not there: random weights of the right shapes, to measure how fast a model runs without them.

Their sizes are those of trained weights, not their values: matrices keep the variance of what they multiply, and norms
multiply by one, so that activations stay near one however many layers there are and logits are finite in every dtype.
(A device that multiplies zeros draws less power and runs faster than it ever will with a model.)
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable

import torch
from torch import Tensor

from ..kernels.layouts import GROUP_SIZE, DenseWeight, LinearWeight
from .checkpoint_tensor import CheckpointTensor

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

    def copy_to(self, destination: Tensor) -> None:
        """Fill `destination` where it is; see `CheckpointTensor.copy_to`."""
        if len(self.shape) == 1 and self.name.endswith(".weight"):
            destination.fill_(1.0)  # a norm
            return
        bound = math.sqrt(3.0 / self.shape[-1]) if len(self.shape) > 1 else _BIAS_BOUND
        generator = torch.Generator(destination.device)
        generator.manual_seed(zlib.crc32(self.name.encode()))
        flat = destination.view(-1)
        drawn = flat[:_NUM_DRAWN].uniform_(-bound, bound, generator=generator)
        for start in range(_NUM_DRAWN, flat.numel(), _NUM_DRAWN):
            part = flat[start : start + _NUM_DRAWN]
            part.copy_(drawn[: part.numel()])

    def read_matrix(self, dtype: torch.dtype | None) -> LinearWeight:
        """Make a dense matrix; see `CheckpointTensor.read_matrix`."""
        weight = torch.empty(self.shape, dtype=dtype or self._dtype)
        self.copy_to(weight)
        return DenseWeight(weight)

    def matrix_bytes(self, dtype: torch.dtype | None, max_scale_group: int = GROUP_SIZE) -> int:
        """Return what a matrix takes; see `CheckpointTensor.matrix_bytes`."""
        return (dtype or self._dtype).itemsize * math.prod(self.shape)
