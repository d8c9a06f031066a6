"""A tensor in a checkpoint file: known by name and shape, read only when it is asked for."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..kernels.layouts import GROUP_SIZE, LinearWeight
from .tensor_part import TensorPart


class CheckpointTensor(Protocol):
    """One stored tensor, whatever the file format. It may be read from any thread while its file is open.

    Attributes:
        name: canonical name, as Hugging Face checkpoints spell it ("model.layers.0.self_attn.q_proj.weight").
        source: the file, and the name there if it is another: for error texts.
        shape: as torch counts it.
    """

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def sliced(self, part: TensorPart) -> CheckpointTensor:
        """Return a part of this tensor as a tensor of its own, which reads no more of the file than it must.

        Packed forms keep their layout where the part begins and ends with groups of it; elsewhere `read_matrix` gives
        the part as a plain matrix.
        """
        ...

    def copy_to(self, destination: Tensor) -> None:
        """Unpack the tensor into `destination`, of the same shape and any float dtype.

        Raises:
            ConfigError: if it is stored in a form that can't be unpacked.
        """
        ...

    def read_matrix(self, dtype: torch.dtype | None) -> LinearWeight:
        """Read a matrix in the canonical layout that is nearest to its stored form, without a bias.

        Args:
            dtype: of a dense matrix; None: the stored one, or float32 for packed forms that have no layout.

        Raises:
            ConfigError: if it is stored in a form that can't be unpacked.
        """
        ...

    def matrix_bytes(self, dtype: torch.dtype | None, max_scale_group: int = GROUP_SIZE) -> int:
        """Return about what the result of `read_matrix` takes in memory once a backend has prepared it.

        Args:
            dtype: as of `read_matrix`.
            max_scale_group: input channels that may share a stored scale; see `Ops`.
        """
        ...
