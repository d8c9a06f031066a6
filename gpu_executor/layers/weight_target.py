"""What a layer expects from the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..formats.checkpoint_tensor import CheckpointTensor
from ..formats.tensor_part import WHOLE_TENSOR, TensorPart


@dataclass(frozen=True, slots=True)
class WeightTarget:
    """One tensor that must or may be in the checkpoint, and where it goes.

    Attributes:
        name: canonical name.
        shape: what the configuration says it must be, all ranks' parts together.
        load: puts this rank's part into its place in the layer's parameters; may be called on any thread.
        loaded_bytes: about what that takes there.
        is_optional: a checkpoint may lack it.
        part: what this rank reads of it.
        is_elsewhere: other ranks hold all of it, and this one only knows that it belongs to the model.
    """

    name: str
    shape: tuple[int, ...]
    load: Callable[[CheckpointTensor], None]
    loaded_bytes: Callable[[CheckpointTensor], int]
    is_optional: bool = False
    part: TensorPart = WHOLE_TENSOR
    is_elsewhere: bool = False
