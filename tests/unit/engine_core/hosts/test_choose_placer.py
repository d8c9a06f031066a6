"""One host has the core's own placer; several have a door, on the loopback interface if all are this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import zmq

from pagewire.engine_core.executors.placer import ExecutorPlacer, LocalPlacer
from pagewire.engine_core.hosts.choose_placer import choose_placer
from pagewire.engine_core.hosts.hosts_placer import HostsPlacer
from pagewire.ipc.cluster_keys import make_cluster_keys
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.endpoints import RuntimeDir
from pagewire.ipc.parallel_config import ParallelConfig


@pytest.fixture
def runtime_dir() -> Iterator[RuntimeDir]:
    runtime_dir = RuntimeDir()
    yield runtime_dir
    runtime_dir.remove()


def chosen(parallel: ParallelConfig, runtime_dir: RuntimeDir) -> tuple[LocalPlacer, ExecutorPlacer]:
    config = EngineConfig(parallel=parallel)
    local = LocalPlacer(zmq.Context.instance(), runtime_dir, config, core_epoch=1)
    return local, choose_placer(config, local, make_cluster_keys(), "f", core_epoch=1)


def test_one_host_needs_nobody_else(runtime_dir: RuntimeDir) -> None:
    local, placer = chosen(ParallelConfig(tensor_parallel_size=2), runtime_dir)
    assert placer is local
    assert placer.await_hosts(0.0)
    placer.dismiss(None)
    placer.close()


@pytest.mark.parametrize(("master_addr", "interface"), [("127.0.0.1", "127.0.0.1"), ("192.0.2.1", "*")])
def test_several_hosts_divide_the_ranks_in_order(
    runtime_dir: RuntimeDir, free_port: int, master_addr: str, interface: str
) -> None:
    parallel = ParallelConfig(tensor_parallel_size=4, nnodes=2, master_addr=master_addr, master_port=free_port)
    _, placer = chosen(parallel, runtime_dir)
    assert isinstance(placer, HostsPlacer)
    seating = placer._seating
    assert (list(seating.agents), seating.num_hosts, seating.ranks_per_host) == ([1], 2, 2)
    assert (placer._interface, placer._hub.port) == (interface, free_port)
    placer.close()
    placer.close()


@pytest.fixture
def free_port() -> int:
    # Not a socket of ZeroMQ's, which gives its port back in a thread, some time after it is closed.
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_ray_has_an_agent_for_every_rank(runtime_dir: RuntimeDir) -> None:
    parallel = ParallelConfig(tensor_parallel_size=2, distributed_executor_backend="ray")
    _, placer = chosen(parallel, runtime_dir)
    assert isinstance(placer, HostsPlacer)
    assert list(placer._seating.agents) == [0, 1]
    assert placer._seating.master_addr == ""  # they meet where rank 0 is
    placer.close()
