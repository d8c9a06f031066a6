"""Bringing the ranks of one engine together, before they load anything.

everyone     all ranks, over gloo: numbers that they must agree on
layers <n>   the ranks of stage n, which share its layers
stages <n>   the n-th ranks of all stages, which hand the stream on
"""

from __future__ import annotations

import socket
from datetime import timedelta
from urllib.parse import urlsplit

import torch

from pagewire.ipc.errors import ConfigError, MachineError
from pagewire.ipc.mesh import Mesh
from pagewire.ipc.steps import RankPlacement

from .choose_group import make_rank_group
from .peers import NO_PEERS, Peers
from .process_groups import ProcessGroup, Store, distributed, make_gloo_group, make_nccl_group
from .share import Share
from .torch_group import TorchGroup

# Ranks start together, but on a cold disk, or on a host that is still being placed, one may come minutes later. Whoever
# died meanwhile is noticed by the core, which ends the others.
_ARRIVAL_LIMIT_S = 300.0
_LOOPBACK = "127.0.0.1"
_DEVICE_TYPES = ("cpu", "cuda")


def connect_ranks(
    placement: RankPlacement,
    mesh: Mesh,
    device: torch.device,
    *,
    is_batch_invariant: bool,
    limit_s: float = _ARRIVAL_LIMIT_S,
) -> Peers:
    """Find the other ranks and join the groups that this one belongs to; called by all ranks.

    Nothing at all happens where there is one rank.

    Args:
        placement: which rank this is, and where the ranks meet.
        mesh: all of them.
        device: what this rank computes on.
        is_batch_invariant: see `make_rank_group`.
        limit_s: how long to wait for the others, in seconds.

    Raises:
        ConfigError: the ranks have found different kinds of devices.
        MachineError: a rank does not come, or can't be reached.
    """
    if mesh.world_size == 1:
        return NO_PEERS
    rank, place = placement.rank, mesh.place_of(placement.rank)
    share, stage = Share(place.tp, mesh.tp), Share(place.pp, mesh.pp)
    try:
        store, address = _open_store(placement.rendezvous, rank, mesh.world_size, limit_s)
        _await_all(store, placement, mesh.world_size, limit_s)
        everyone = TorchGroup(
            make_gloo_group(store, "everyone", rank, mesh.world_size, address), device=torch.device("cpu")
        )
        _check_devices(everyone, device)
        of_layers = make_rank_group(
            store, f"layers {place.pp}", share, device, address=address, is_batch_invariant=is_batch_invariant
        )
        of_stages = _join_stages(store, f"stages {place.tp}", stage, device, address)
    except RuntimeError as exc:  # the class of all that stores and process groups raise
        raise MachineError(
            f"rank {rank} can't reach the other ranks at {placement.rendezvous}: {_first_line(exc)}. See their logs; "
            "the ranks' hosts must reach each other at all ports."
        ) from exc
    return Peers(share=share, stage=stage, of_layers=of_layers, everyone=everyone, of_stages=of_stages)


def _open_store(rendezvous: str, rank: int, world_size: int, limit_s: float) -> tuple[Store, str]:
    """Return where the ranks meet, and this host's address as the others reach it."""
    url = urlsplit(rendezvous)
    if url.scheme == "file":
        store = distributed.FileStore(url.path, world_size)
        store.set_timeout(timedelta(seconds=limit_s))
        return store, _LOOPBACK
    assert url.scheme == "tcp", f"ranks meet at a file or a port, not at {rendezvous!r}"
    assert url.hostname is not None, f"{rendezvous!r} names no host"
    assert url.port is not None, f"{rendezvous!r} names no port"
    store = distributed.TCPStore(
        url.hostname,
        url.port,
        world_size,
        is_master=rank == 0,
        timeout=timedelta(seconds=limit_s),
        wait_for_workers=False,
    )
    return store, address_towards(url.hostname, url.port)


def address_towards(host: str, port: int) -> str:
    """Return this host's address on the network by which it reaches another; nothing is sent.

    Raises:
        MachineError: there is no way there.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as exc:
        raise MachineError(f"--master-addr {host} can't be reached from this host: {exc.strerror or exc}.") from exc


def _await_all(store: Store, placement: RankPlacement, world_size: int, limit_s: float) -> None:
    """Wait until every rank has come; a group would wait for them as well, but could not say for whom."""
    names = [f"arrived/{rank}" for rank in range(world_size)]
    store.set(names[placement.rank], "")
    try:
        store.wait(names, timedelta(seconds=limit_s))
    except RuntimeError as exc:  # torch has a class of its own for that in later versions alone
        missing = [str(rank) for rank, name in enumerate(names) if not store.check([name])]
        raise MachineError(
            f"rank {placement.rank} has waited {limit_s:g} s at {placement.rendezvous} for "
            f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(missing)} of {world_size}: see the logs of those, "
            "and whether their hosts reach this one."
        ) from exc


def _check_devices(everyone: TorchGroup, device: torch.device) -> None:
    kind = _DEVICE_TYPES.index(device.type)
    if everyone.least(kind) != -everyone.least(-kind):
        raise ConfigError(
            "some ranks of this engine have a GPU and others have none: give --device cpu, or --device cuda and as "
            "many GPUs as ranks on each host.",
            param="device",
        )


def _join_stages(store: Store, name: str, stage: Share, device: torch.device, address: str) -> ProcessGroup | None:
    if stage.size == 1:
        return None
    if device.type == "cuda":
        return make_nccl_group(store, name, stage.rank, stage.size)
    return make_gloo_group(store, name, stage.rank, stage.size, address)


def _first_line(exc: Exception) -> str:
    return str(exc).partition("\n")[0].rstrip(". ")
