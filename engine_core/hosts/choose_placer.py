"""Who places executors: this host's core alone, agents of hosts that were started one by one, or Ray."""

from __future__ import annotations

import ipaddress
import socket

from pagewire.ipc.cluster_keys import ClusterKeys, make_cluster_keys
from pagewire.ipc.config import EngineConfig

from ..executors.placer import ExecutorPlacer, LocalPlacer
from .hosts_placer import HostsPlacer, Seating
from .placement_helper import RayHelper


def choose_placer(
    config: EngineConfig,
    local: LocalPlacer,
    cluster_keys: ClusterKeys | None,
    model_fingerprint: str,
    *,
    core_epoch: int,
) -> ExecutorPlacer:
    """Return the placer that the config asks for.

    Args:
        config: of the engine.
        local: starts executors on this host.
        cluster_keys: of the engine's hosts; None if they need none to come in, or if they are made here.
        model_fingerprint: of the model that this host has.
        core_epoch: of the core.

    Raises:
        MachineError: the port for the other hosts is taken.
    """
    parallel = config.parallel
    world_size = parallel.mesh.world_size
    if parallel.distributed_executor_backend == "ray":
        # Whoever places the hosts hands them the keys, which nobody else needs.
        keys = make_cluster_keys()
        return HostsPlacer(
            Seating(agents=range(world_size), num_hosts=world_size, ranks_per_host=1),
            None,
            keys,
            model_fingerprint,
            core_epoch=core_epoch,
            helper=RayHelper(config, keys, core_epoch=core_epoch),
        )
    if parallel.nnodes == 1:
        return local
    return HostsPlacer(
        Seating(
            agents=range(1, parallel.nnodes),
            num_hosts=parallel.nnodes,
            ranks_per_host=world_size // parallel.nnodes,
            master_addr=parallel.master_addr,
        ),
        local,
        cluster_keys,
        model_fingerprint,
        core_epoch=core_epoch,
        interface=_interface_of(parallel.master_addr),
        port=parallel.master_port,
    )


def _interface_of(master_addr: str) -> str:
    """Return where to listen: on a loopback address if it is one, else everywhere: only others may see the address."""
    try:
        address = socket.getaddrinfo(master_addr, None, family=socket.AF_INET)[0][4][0]
        return str(address) if ipaddress.ip_address(address).is_loopback else "*"
    except OSError:
        return "*"
