"""A tensor in a checkpoint file: known by name and shape, read only when it is asked for."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class CheckpointTensor(Protocol):
    """One stored tensor, whatever the file format.

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

    def copy_to(self, destination: Tensor) -> None:
        """Unpack the tensor into `destination`, of the same shape and any float dtype.

        Raises:
            ConfigError: if it is stored in a form that can't be unpacked.
        """
        ...
