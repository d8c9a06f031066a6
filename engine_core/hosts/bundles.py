"""What executors ask of a Ray cluster, and which of them sits in which bundle of what they get."""

from __future__ import annotations

from collections import Counter

from pagewire.ipc.config import EngineConfig
from pagewire.ipc.hosts import HostSeat


def choose_bundle(config: EngineConfig, resources: dict[str, float]) -> dict[str, float]:
    """Return what one executor needs of a node: a GPU, or as many CPUs as it has threads.

    Args:
        config: of the engine; --device says which, and auto takes GPUs where the cluster has any.
        resources: of the cluster.
    """
    device = config.model.device
    if device == "cuda" or (device == "auto" and resources.get("GPU", 0) > 0):
        return {"GPU": 1}
    return {"CPU": config.model.cpu_threads or 1}


def seat_bundles(nodes: dict[int, str], *, has_gpus: bool) -> dict[int, HostSeat]:
    """Return the seat of each bundle: those of one node are neighbours, as ranks that share layers are.

    Args:
        nodes: the node of each bundle.
        has_gpus: Ray shows each actor its own GPU alone; what CPUs there are, the executors of a node divide.
    """
    by_node = sorted(nodes, key=lambda number: (min(n for n in nodes if nodes[n] == nodes[number]), number))
    num_on_node = Counter(nodes.values())
    place_on_node: Counter[str] = Counter()
    seats = {}
    for index, number in enumerate(by_node):
        node = nodes[number]
        place = 0 if has_gpus else place_on_node[node]
        seats[number] = HostSeat(
            index=index,
            num_hosts=len(nodes),
            index_on_host=place,
            num_on_host=1 if has_gpus else num_on_node[node],
        )
        place_on_node[node] += 1
    return seats


def describe_resources(resources: dict[str, float]) -> str:
    """Return what executors use of some resources, for a text."""
    known = {name: amount for name, amount in resources.items() if name in ("CPU", "GPU")}
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(known.items())) or "none"
