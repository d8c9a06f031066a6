"""What carries the sums between the ranks that share layers: the one place where it is chosen, once at start."""

from __future__ import annotations

import torch

from .process_groups import Store, make_gloo_group, make_nccl_group
from .rank_group import ALONE, RankGroup
from .share import Share
from .torch_group import ReducingGroup, TorchGroup


def make_rank_group(
    store: Store, name: str, share: Share, device: torch.device, *, address: str, is_batch_invariant: bool
) -> RankGroup:
    """Join the ranks that share this one's layers.

    Args:
        store: where the ranks find each other.
        name: of the group; other stages have groups of other names.
        share: this rank's place among them.
        device: of the tensors that they exchange, of the same type on all of them.
        address: of this host, as the others reach it; the loopback address if all are on one host.
        is_batch_invariant: a GPU's sums must not depend on the batch. A CPU's never do.

    Raises:
        RuntimeError: a rank can't be reached.
    """
    if share.size == 1:
        return ALONE
    if device.type == "cuda":
        kind = TorchGroup if is_batch_invariant else ReducingGroup
        return kind(make_nccl_group(store, name, share.rank, share.size), device)
    return TorchGroup(make_gloo_group(store, name, share.rank, share.size, address), device)
