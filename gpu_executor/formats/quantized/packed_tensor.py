"""A linear layer's weight that a checkpoint holds as several tensors, as one tensor for the loader."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ...kernels.layouts import DenseWeight, LinearWeight
from .integer_matrix import IntegerMatrix

logger = logging.getLogger(__name__)

# Bytes of a number in the grouped layouts, scale and minimum included.
_BYTES_OF_4_BITS = 0.5 + 4 / 32
_BYTES_OF_8_BITS = 1 + 2 / 32


class IntegerTensor(ABC):
    """A weight of integers with scales; see `CheckpointTensor`.

    Args:
        module: canonical name of the layer.
        source: the file, for error texts.
        shape: [out_features, in_features], of the weight.
        bits: of a code.
    """

    def __init__(self, module: str, source: str, shape: tuple[int, int], bits: int) -> None:
        self.name = f"{module}.weight"
        self.source = source
        self.shape: tuple[int, ...] = shape
        self._bits = bits

    @abstractmethod
    def read_integers(self) -> IntegerMatrix:
        """Read the stored tensors and take their bits apart.

        Raises:
            ConfigError: if what they hold is not what the format allows; the message names the tensor.
        """

    def copy_to(self, destination: Tensor) -> None:
        """Unpack into `destination`; see `CheckpointTensor.copy_to`."""
        destination.copy_(self.read_integers().dequantize())

    def read_matrix(self, dtype: torch.dtype | None) -> LinearWeight:
        """Read in the nearest canonical layout; see `CheckpointTensor.read_matrix`."""
        matrix = self.read_integers()
        grouped = matrix.to_grouped()
        if grouped is not None:
            return grouped
        logger.info("%s: has groups that no packed layout holds; it takes more memory as a plain matrix", self.source)
        return DenseWeight(matrix.dequantize().to(dtype or torch.float32))

    def matrix_bytes(self, dtype: torch.dtype | None) -> int:
        """Return about what a matrix takes; see `CheckpointTensor.matrix_bytes`."""
        return int(math.prod(self.shape) * (_BYTES_OF_4_BITS if self._bits <= 4 else _BYTES_OF_8_BITS))
