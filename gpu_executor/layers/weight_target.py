"""What a layer expects from the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..formats.checkpoint_tensor import CheckpointTensor


@dataclass(frozen=True, slots=True)
class WeightTarget:
    """One tensor that must or may be in the checkpoint, and where it goes.

    Attributes:
        name: canonical name.
        shape: what the configuration says it must be.
        load: puts it into its place in the layer's parameters; may be called on any thread.
        loaded_bytes: about what it takes there.
        is_optional: a checkpoint may lack it.
    """

    name: str
    shape: tuple[int, ...]
    load: Callable[[CheckpointTensor], None]
    loaded_bytes: Callable[[CheckpointTensor], int]
    is_optional: bool = False
