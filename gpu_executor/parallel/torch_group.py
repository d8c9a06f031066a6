"""The ranks that share layers, joined by one of torch's process groups."""

from __future__ import annotations

import torch
from torch import Tensor

from .lost_peers import expecting_peers
from .process_groups import ProcessGroup
from .rank_group import RankGroup


class TorchGroup(RankGroup):
    """Gathers what the ranks have, and adds it up itself.

    An all-reduce would move less, but its order follows the size of what it adds: a row's sum would depend on the rows
    beside it.

    Args:
        group: joined.
        device: of all tensors.

    Attributes:
        process_group: what carries the tensors.
    """

    def __init__(self, group: ProcessGroup, device: torch.device) -> None:
        self.process_group = group
        self._device = device
        self.rank = group.rank()
        self.size = group.size()
        self.can_be_captured = device.type == "cuda"  # transfers of nccl are launched on a stream, as kernels are

    def sum_in_order(self, x: Tensor) -> Tensor:
        parts = self._gather(x)
        total = parts[0].float()  # what was gathered is nobody else's: it may be added to
        for part in parts[1:]:
            total += part
        return total.to(x.dtype)

    def gather(self, x: Tensor) -> list[Tensor]:
        return list(self._gather(x).unbind())

    def least(self, number: int) -> int:
        return int(self._gather(torch.tensor([number], device=self._device)).min())

    def _gather(self, x: Tensor) -> Tensor:
        """Return what each rank has: [size, *x.shape]."""
        parts = x.new_empty(self.size, *x.shape)
        with expecting_peers():
            self.process_group.allgather([list(parts.unbind())], [x]).wait()
        return parts


class ReducingGroup(TorchGroup):
    """Has the library add up, in whatever order is fastest for that size: of GPUs that need not be batch invariant.

    A reduction of one's own, as over the peers' memory for the small sums of decodes, would be another class like this.
    """

    def sum_in_order(self, x: Tensor) -> Tensor:
        """Add up what the ranks have; every rank gets the same bits, but a row's may follow the rows beside it."""
        with expecting_peers():
            self.process_group.allreduce([x]).wait()
        return x
