"""Groups of processes that exchange tensors: torch's gloo between CPUs, nccl (on AMD's GPUs rccl) between GPUs.

They are made directly and not by `torch.distributed.init_process_group`: what a rank belongs to is passed down like
everything else, and an executor of one rank has none.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed
from torch import Tensor

# A rank that waits in vain is ended by the core, which knows whether the others work or hang: no limit of its own.
_NO_LIMIT = timedelta(days=7)
# Chooses the network of a host that has several, as everywhere that gloo is used.
_INTERFACE = "GLOO_SOCKET_IFNAME"

distributed: Any = torch.distributed  # Any: its annotations lack most of what it exports
Store = Any  # distributed.Store


class Pending(Protocol):
    """A transfer that was begun."""

    def wait(self) -> bool:
        """Wait for it: gloo until it is over; nccl has the device's current stream wait, and returns at once."""
        ...


class ProcessGroup(Protocol):
    """What is used of torch's backends, whose annotations lack it."""

    def rank(self) -> int: ...

    def size(self) -> int: ...

    def allgather(self, outputs: Sequence[list[Tensor]], inputs: Sequence[Tensor]) -> Pending: ...

    def allreduce(self, tensors: Sequence[Tensor]) -> Pending: ...

    def send(self, tensors: Sequence[Tensor], rank: int, tag: int) -> Pending: ...

    def recv(self, tensors: Sequence[Tensor], rank: int, tag: int) -> Pending: ...


def make_gloo_group(store: Store, name: str, rank: int, size: int, address: str) -> ProcessGroup:
    """Join a group between CPUs; returns once all ranks have.

    Args:
        store: where the ranks find each other.
        name: of the group; no other one of the store has it.
        rank: of this process in the group.
        size: ranks of the group.
        address: of this host, as the other ranks reach it.

    Raises:
        RuntimeError: a rank can't be reached.
    """
    gloo = distributed.ProcessGroupGloo
    options = gloo._Options()
    interface = os.environ.get(_INTERFACE, "")
    is_loopback = address == "127.0.0.1"
    # An address, not a host's name: it need not resolve, and what it resolves to need not be reachable.
    options._devices = [
        gloo.create_device(interface=interface)
        if interface and not is_loopback
        else gloo.create_device(hostname=address)
    ]
    options._timeout = _NO_LIMIT
    joined: ProcessGroup = gloo(distributed.PrefixStore(name, store), rank, size, options)
    return joined


def make_nccl_group(store: Store, name: str, rank: int, size: int) -> ProcessGroup:
    """Join a group between GPUs, each rank by its current one; connections are made with the first transfer.

    Args:
        store: where the ranks find each other.
        name: of the group; no other one of the store has it.
        rank: of this process in the group.
        size: ranks of the group.
    """
    nccl = distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = _NO_LIMIT
    joined: ProcessGroup = nccl(distributed.PrefixStore(name, store), rank, size, options)
    return joined
