"""A linear layer's weight that a checkpoint holds as several tensors, as one tensor for the loader."""

from __future__ import annotations

import copy
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from ...kernels.layouts import GROUP_SIZE, DenseWeight, LinearWeight
from ..tensor_part import WHOLE_TENSOR, TensorPart
from .integer_matrix import IntegerMatrix, holds_groups

logger = logging.getLogger(__name__)

# Bytes of a group's float16 scale, and of its minimum, which 8-bit weights mostly have none of.
_SCALE_BYTES_OF_4_BITS = 4
_SCALE_BYTES_OF_8_BITS = 2


class IntegerTensor(ABC):
    """A weight of integers with scales; see `CheckpointTensor`.

    Each format says where its codes, its scales and the order of its channels are, and reads a part of them.

    Args:
        module: canonical name of the layer.
        source: the file, for error texts.
        shape: [out_features, in_features], of the weight.
        bits: of a code.
        group_size: input channels that share a scale; None: all of a row.
    """

    def __init__(self, module: str, source: str, shape: tuple[int, int], bits: int, group_size: int | None) -> None:
        self.name = f"{module}.weight"
        self.source = source
        self.shape: tuple[int, ...] = shape
        self._bits = bits
        self._group_size = group_size
        self._whole_shape = shape
        self._part = WHOLE_TENSOR

    def sliced(self, part: TensorPart) -> Self:
        """Return a part, of a whole tensor; see `CheckpointTensor.sliced`."""
        assert self._part.is_whole, "a part is not cut again"
        piece = copy.copy(self)
        piece.shape, piece._part = part.shape_of(self.shape), part
        return piece

    @abstractmethod
    def read_group_of(self) -> Tensor:
        """Return the group of each input channel of the whole weight, [in_features] int64.

        Raises:
            ConfigError: if a group has no scale; the message names the tensor.
        """

    @abstractmethod
    def read_codes(self, rows: Sequence[range], columns: range) -> Tensor:
        """Read codes and take their bits apart.

        Args:
            rows: runs of output channels, at least one, which become neighbours.
            columns: input channels.

        Returns:
            [rows, columns] uint8, 0 to 2^bits - 1.
        """

    @abstractmethod
    def read_scale_and_zero(self, rows: Sequence[range], groups: range) -> tuple[Tensor, Tensor]:
        """Read scales and zero points.

        Args:
            rows: as of `read_codes`.
            groups: of a row.

        Returns:
            Both [rows, groups] float32; zero points are whole numbers.

        Raises:
            ConfigError: if what is stored is not what the format allows; the message names the tensor.
        """

    def read_integers(self) -> IntegerMatrix:
        """Read the stored tensors and take their bits apart.

        Raises:
            ConfigError: if what they hold is not what the format allows; the message names the tensor.
        """
        out_features, in_features = self._whole_shape
        rows, columns = self._part.row_runs(out_features), self._part.column_run(in_features)
        group_of = self._read_group_of_part()
        first, last = (int(bound) for bound in group_of.aminmax())
        scale, zero = self.read_scale_and_zero(rows, range(first, last + 1))
        return IntegerMatrix(self._bits, self.read_codes(rows, columns), scale, zero, group_of - first)

    def copy_to(self, destination: Tensor) -> None:
        """Unpack into `destination`; see `CheckpointTensor.copy_to`."""
        self.read_integers().copy_to(destination)

    def read_matrix(self, dtype: torch.dtype | None) -> LinearWeight:
        """Read in the nearest canonical layout; see `CheckpointTensor.read_matrix`."""
        matrix = self.read_integers()
        grouped = matrix.to_grouped()
        if grouped is not None:
            return grouped
        # A rank's part of the channels has hardly ever whole groups if they were given to groups in another order.
        what = "has groups" if self._part.columns is None else "is cut into groups"
        logger.info("%s: %s that no packed layout holds; it takes more memory as a plain matrix", self.source, what)
        return DenseWeight(matrix.dequantize(dtype or torch.float32))

    def matrix_bytes(self, dtype: torch.dtype | None, max_scale_group: int = GROUP_SIZE) -> int:
        """Return about what a matrix takes; see `CheckpointTensor.matrix_bytes`."""
        if not self._has_whole_groups:
            return math.prod(self.shape) * (dtype or torch.float32).itemsize  # no packed layout holds it
        # Backends that keep scales of larger groups once halve what they repeat: a group of 96 is three of 32, and so
        # is one of 128 that lacks its first 32.
        first, group = self._part.column_run(self._whole_shape[1]).start, max_scale_group
        while group > GROUP_SIZE and self._group_size is not None and (self._group_size % group or first % group):
            group //= 2
        of_one = 0.5 + _SCALE_BYTES_OF_4_BITS / group if self._bits <= 4 else 1 + _SCALE_BYTES_OF_8_BITS / group
        return int(math.prod(self.shape) * of_one)

    @property
    def _has_whole_groups(self) -> bool:
        """Whether a packed layout holds the part's groups."""
        if self._part.columns is None:
            return self._group_size is None or self._group_size % GROUP_SIZE == 0
        # Which channels of an order lie in the part is known to the order alone; it is small.
        return holds_groups(self._read_group_of_part(), self._bits)

    def _read_group_of_part(self) -> Tensor:
        columns = self._part.column_run(self._whole_shape[1])
        return self.read_group_of()[columns.start : columns.stop]


def of_each_run(read: Callable[[range], Tensor], runs: Sequence[range]) -> Tensor:
    """Return what is read of each run of rows, below each other.

    Args:
        read: of a run, gives as many rows.
        runs: at least one.
    """
    pieces = [read(run) for run in runs]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
