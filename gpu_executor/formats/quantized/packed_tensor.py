"""A linear layer's weight that a checkpoint holds as several tensors, as one tensor for the loader."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ...kernels.layouts import GROUP_SIZE, DenseWeight, LinearWeight
from .integer_matrix import IntegerMatrix

logger = logging.getLogger(__name__)

# Bytes of a group's float16 scale, and of its minimum, which 8-bit weights mostly have none of.
_SCALE_BYTES_OF_4_BITS = 4
_SCALE_BYTES_OF_8_BITS = 2


class IntegerTensor(ABC):
    """A weight of integers with scales; see `CheckpointTensor`.

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

    @abstractmethod
    def read_integers(self) -> IntegerMatrix:
        """Read the stored tensors and take their bits apart.

        Raises:
            ConfigError: if what they hold is not what the format allows; the message names the tensor.
        """

    def copy_to(self, destination: Tensor) -> None:
        """Unpack into `destination`; see `CheckpointTensor.copy_to`."""
        self.read_integers().copy_to(destination)

    def read_matrix(self, dtype: torch.dtype | None) -> LinearWeight:
        """Read in the nearest canonical layout; see `CheckpointTensor.read_matrix`."""
        matrix = self.read_integers()
        grouped = matrix.to_grouped()
        if grouped is not None:
            return grouped
        logger.info("%s: has groups that no packed layout holds; it takes more memory as a plain matrix", self.source)
        return DenseWeight(matrix.dequantize(dtype or torch.float32))

    def matrix_bytes(self, dtype: torch.dtype | None, max_scale_group: int = GROUP_SIZE) -> int:
        """Return about what a matrix takes; see `CheckpointTensor.matrix_bytes`."""
        if self._group_size is not None and self._group_size % GROUP_SIZE:
            return math.prod(self.shape) * (dtype or torch.float32).itemsize  # no packed layout holds it
        # Backends that keep scales of larger groups once halve what they repeat: a group of 96 is three of 32.
        group = max_scale_group
        while group > GROUP_SIZE and self._group_size is not None and self._group_size % group:
            group //= 2
        of_one = 0.5 + _SCALE_BYTES_OF_4_BITS / group if self._bits <= 4 else 1 + _SCALE_BYTES_OF_8_BITS / group
        return int(math.prod(self.shape) * of_one)
