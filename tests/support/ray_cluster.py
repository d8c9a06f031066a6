"""A Ray cluster of two nodes on this machine, as a process: prints its address, ends with its standard input.

A process of its own, as Ray changes the one that it is imported into.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

OBJECT_STORE_BYTES = 100 * 2**20


def main() -> None:
    options = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    try:
        cluster.add_node(**options)
        sys.stdout.write(f"{cluster.address}\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
