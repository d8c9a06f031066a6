"""What every layer is built with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..kernels.ops import Ops
from ..parallel.share import WHOLE, Share
from ..quantization.base import QuantMethod


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Handed down from the model to its layers, so that none of them looks anything up.

    Attributes:
        ops: the kernels.
        quant_method: how linear weights are stored.
        dtype: compute dtype: of activations, and of the parameters that are no matrices.
        weight_dtype: dtype of dense matrices; None: as the checkpoint stores each.
        device: where they live.
        share: this rank's part of each layer; `ops.ranks` are those that it divides them with.
        stage: this rank's part of the layers.
        divides_experts: the ranks of a share divide the experts of a mixture, and hold theirs whole.
        is_elsewhere: what is built with this belongs to other ranks: it knows the names and shapes of its tensors,
            and is never loaded.
    """

    ops: Ops
    quant_method: QuantMethod
    dtype: torch.dtype
    weight_dtype: torch.dtype | None
    device: torch.device
    share: Share = WHOLE
    stage: Share = WHOLE
    divides_experts: bool = False
    is_elsewhere: bool = False

    def elsewhere(self) -> BuildContext:
        """Return a context like this for what other ranks hold; nothing that is built with it takes memory."""
        return replace(self, device=torch.device("meta"), is_elsewhere=True)

    def empty(self, *shape: int) -> Tensor:
        """Allocate a parameter whose contents are undefined until it is loaded."""
        return torch.empty(*shape, dtype=self.dtype, device=self.device)
