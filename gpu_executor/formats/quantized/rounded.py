"""Plain matrices that are rounded while they are loaded: --quantization int8 and fp8 of a checkpoint that has none."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from pagewire.checkpoint.quantization.quantization_config import QuantizationConfig
from pagewire.checkpoint.quantization.schemes import RoundedScheme
from pagewire.ipc.errors import ConfigError

from ...kernels.layouts import GROUP_SIZE, DenseWeight, LinearWeight
from ...kernels.reference.dequantize import dequantize
from ...quantization.round_to_nearest import round_to_fp8, round_to_int8
from ..checkpoint_tensor import CheckpointTensor
from ..cut_columns import cut_columns
from ..tensor_part import TensorPart
from .module_parts import ModuleParts, check_dtype
from .scales import check_matrix

logger = logging.getLogger(__name__)

# Bytes of a number, scales included.
_BYTES_OF = {"int8": 1 + 2 / GROUP_SIZE, "fp8": 1.0}


def read_rounded(parts: ModuleParts, scheme: RoundedScheme) -> CheckpointTensor:
    """Let a layer's plain weight be rounded.

    Raises:
        ConfigError: if it is missing, or is no plain matrix. The message names it.
    """
    weight = parts.take("weight")
    check_dtype(weight, "F32", "F16", "BF16")
    check_matrix(weight)
    return RoundedTensor(weight, scheme.to)


def round_dummies(
    tensors: Iterable[CheckpointTensor],
    quantization: QuantizationConfig,
    linear_modules: frozenset[str],
    model_path: str,
) -> list[CheckpointTensor]:
    """Let the weights of a checkpoint that is not there be rounded as if it were.

    Args:
        tensors: plain ones, all of the model.
        quantization: which layers are rounded.
        linear_modules: canonical names of the model's linear layers.
        model_path: for error texts.

    Raises:
        ConfigError: if the layers are not rounded but packed, which random numbers can't be.
    """
    rounded: list[CheckpointTensor] = []
    for tensor in tensors:
        module, _, name = tensor.name.rpartition(".")
        scheme = quantization.scheme_of(module) if name == "weight" and module in linear_modules else None
        if scheme is None:
            rounded.append(tensor)
        elif isinstance(scheme, RoundedScheme):
            rounded.append(RoundedTensor(tensor, scheme.to))
        else:
            raise ConfigError(
                f"--load-format dummy: {model_path} holds packed weights ({quantization.method}), which have no random "
                "form; leave the flag out, or name a plain checkpoint, perhaps with --quantization int8 or fp8.",
                param="load_format",
            )
    return rounded


class RoundedTensor:
    """A plain matrix, read rounded; see `CheckpointTensor`.

    Rows that are no multiple of 32 channels have no int8 layout: such a matrix stays as it is.

    Args:
        plain: what is rounded.
        to: the layout.
        columns: a part of it: what is left after it was rounded; None: all.
    """

    def __init__(self, plain: CheckpointTensor, to: Literal["int8", "fp8"], columns: range | None = None) -> None:
        self.name = plain.name
        self.source = plain.source
        self.shape = TensorPart(columns=columns).shape_of(plain.shape)
        self._plain = plain
        self._to = to
        self._columns = columns

    def sliced(self, part: TensorPart) -> CheckpointTensor:
        """Return a part, of a whole tensor; see `CheckpointTensor.sliced`."""
        assert self._columns is None, "a part is not cut again"
        if not self._is_rounded:
            return self._plain.sliced(part)
        if part.columns is None or (self._to == "int8" and _are_groups(part.columns)):
            return RoundedTensor(self._plain.sliced(part), self._to)
        # The numbers that a scale is made of lie outside too.
        return RoundedTensor(self._plain.sliced(TensorPart(rows=part.rows)), self._to, part.columns)

    def copy_to(self, destination: Tensor) -> None:
        """Write the rounded numbers; see `CheckpointTensor.copy_to`."""
        destination.copy_(dequantize(self.read_matrix(torch.float32)))

    def read_matrix(self, dtype: torch.dtype | None) -> LinearWeight:
        """Read and round; see `CheckpointTensor.read_matrix`."""
        if not self._is_rounded:
            return self._plain.read_matrix(dtype)
        plain = self._plain.read_matrix(None)
        assert isinstance(plain, DenseWeight), "what is rounded is stored as a plain matrix"
        try:
            rounded = round_to_int8(plain.weight) if self._to == "int8" else round_to_fp8(plain.weight)
        except ValueError as exc:
            raise ConfigError(f"{self.source}: can't be rounded to {self._to}: {exc}") from exc
        if self._columns is None:
            return rounded
        if not self._is_plain:
            return cut_columns(rounded, self._columns)
        logger.info("%s: is cut within a group of scales; it takes more memory as a plain matrix", self.source)
        return cut_columns(DenseWeight(dequantize(rounded).to(dtype or torch.float32)), self._columns)

    def matrix_bytes(self, dtype: torch.dtype | None, max_scale_group: int = GROUP_SIZE) -> int:
        """Return about what a matrix takes; see `CheckpointTensor.matrix_bytes`."""
        if not self._is_rounded:
            return self._plain.matrix_bytes(dtype, max_scale_group)
        if self._is_plain:
            return (dtype or torch.float32).itemsize * self.shape[0] * self.shape[1]
        return int(self.shape[0] * self.shape[1] * _BYTES_OF[self._to])

    @property
    def _is_rounded(self) -> bool:
        return self._to == "fp8" or self._plain.shape[1] % GROUP_SIZE == 0

    @property
    def _is_plain(self) -> bool:
        """Whether the part has rounded numbers and no layout that holds them."""
        return self._to == "int8" and self._columns is not None


def _are_groups(columns: range) -> bool:
    return columns.start % GROUP_SIZE == 0 and columns.stop % GROUP_SIZE == 0
