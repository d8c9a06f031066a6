"""What a packing says of the linear layers that it writes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pagewire.ipc.errors import ConfigError

from ...quantization.least_squares import fit_integers
from ..quantized.integer_matrix import IntegerMatrix


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that a file is to hold.

    Attributes:
        name: in the checkpoint.
        dtype: as stored.
        shape: outermost dimension first; () for a scalar.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """What it takes in a file."""
        return math.prod(self.shape) * self.dtype.itemsize


class Packing(ABC):
    """One way to store the matrix of a linear layer, as one or several tensors."""

    @abstractmethod
    def describe(self) -> str:
        """Return format and grouping, for people."""

    @abstractmethod
    def quantization_config(self) -> dict[str, object]:
        """Return what config.json says of a checkpoint whose linear layers are all packed so, but for lm_head."""

    @abstractmethod
    def check(self, module: str, shape: tuple[int, int]) -> None:
        """Refuse a matrix that can't be packed.

        Args:
            module: name of the layer.
            shape: [out_features, in_features].

        Raises:
            ConfigError: if its sizes don't fit.
        """

    @abstractmethod
    def specs(self, shape: tuple[int, int], dtype: torch.dtype) -> list[TensorSpec]:
        """Return the tensors of a layer, in the order of `pack`; their names are the last parts ("weight_scale").

        Args:
            shape: [out_features, in_features].
            dtype: of the plain matrix.
        """

    @abstractmethod
    def pack(self, matrix: Tensor) -> list[Tensor]:
        """Round a matrix and return its tensors.

        Args:
            matrix: [out_features, in_features], float32, float16 or bfloat16, finite.
        """


class IntegerPacking(Packing):
    """One that stores integers with scales, whoever chooses them.

    Attributes:
        bits: 4 or 8.
        group_size: input channels that share a scale; None: a row.
        is_symmetric: there are no zero points.
    """

    bits: int
    group_size: int | None
    is_symmetric: bool

    @abstractmethod
    def scale_dtypes(self, dtype: torch.dtype) -> Sequence[torch.dtype]:
        """Return the types that scales are rounded to in turn, before codes are chosen; the last holds them as stored.

        Args:
            dtype: of the plain matrix.
        """

    @abstractmethod
    def store(self, rounded: IntegerMatrix, dtype: torch.dtype) -> list[Tensor]:
        """Return the tensors of a matrix that is rounded already.

        Args:
            rounded: by `bits`, `group_size` and `is_symmetric`, its scales of the last of `scale_dtypes`.
            dtype: of the plain matrix.
        """

    def pack(self, matrix: Tensor) -> list[Tensor]:
        rounded = fit_integers(
            matrix,
            bits=self.bits,
            group_size=self.group_size,
            is_symmetric=self.is_symmetric,
            scale_dtypes=self.scale_dtypes(matrix.dtype),
        )
        return self.store(rounded, matrix.dtype)


def scale_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type whose numbers scales are rounded to before codes are chosen, whatever they are stored in.

    Every reader keeps them: it brings scales to the model's dtype, which for a float32 checkpoint is one of 16 bits,
    too, and this engine to float16, which holds every bfloat16 number of a scale's size.

    Args:
        dtype: of the plain matrix.
    """
    return torch.float16 if dtype == torch.float16 else torch.bfloat16


def pack_words(codes: Tensor, bits: int) -> Tensor:
    """Put codes of 4 or 8 bits into words of 32, the first into the lowest bits; zeros fill the last word of a row.

    Args:
        codes: [rows, columns] uint8, below 2^bits.
        bits: 4 or 8.

    Returns:
        [rows, ceil(columns / (32 / bits))] int32.
    """
    codes = F.pad(codes, (0, -codes.shape[1] % (32 // bits)))
    if bits == 4:
        codes = codes[:, ::2] | codes[:, 1::2] << 4
    return codes.reshape(-1).view(torch.int32).view(codes.shape[0], -1)


def pack_words_down(codes: Tensor, bits: int) -> Tensor:
    """Do the same along columns: [rows, columns] -> [ceil(rows / (32 / bits)), columns]."""
    return pack_words(codes.t(), bits).t().contiguous()


def check_groups(module: str, in_features: int, group_size: int | None) -> None:
    """Refuse a row that groups don't divide.

    Raises:
        ConfigError: if the last group would be a shorter one.
    """
    if group_size is not None and in_features % group_size:
        fitting = [size for size in (128, 64, 32) if in_features % size == 0]
        remedy = f"give --group-size {fitting[0]}" if fitting else "give --group-size -1 (one group a row)"
        raise ConfigError(
            f"{module}: its {in_features} input channels are no multiple of --group-size {group_size}; {remedy}."
        )
