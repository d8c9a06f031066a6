"""Ranks that find each other, as threads of one process: a process group does not mind."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from pagewire.gpu_executor.parallel.connect import address_towards, connect_ranks
from pagewire.gpu_executor.parallel.peers import NO_PEERS, Peers
from pagewire.gpu_executor.parallel.share import Share
from pagewire.gpu_executor.parallel.stage_link import StageLink
from pagewire.ipc.errors import ConfigError, MachineError
from pagewire.ipc.mesh import Mesh
from pagewire.ipc.steps import RankPlacement

CPU = torch.device("cpu")


T = TypeVar("T")


def on_all_ranks(mesh: Mesh, rendezvous: str, work: Callable[[Peers], T]) -> list[T]:
    """Connect all ranks and have each do something; return what each got, in rank order."""

    def run(rank: int) -> T:
        placement = RankPlacement(rank=rank, num_on_host=mesh.world_size, rendezvous=rendezvous)
        return work(connect_ranks(placement, mesh, CPU, is_batch_invariant=True, limit_s=30))

    with ThreadPoolExecutor(mesh.world_size) as threads:
        return list(threads.map(run, range(mesh.world_size)))


def test_one_rank_meets_nobody() -> None:
    assert connect_ranks(RankPlacement(), Mesh(), CPU, is_batch_invariant=True) is NO_PEERS


def test_ranks_know_their_place_and_agree(tmp_path: Path) -> None:
    mesh = Mesh(pp=2, tp=2)
    peers = on_all_ranks(mesh, f"file://{tmp_path}/ranks", lambda of: (of, of.everyone.least(9 - of.everyone.rank)))
    assert [least for _, least in peers] == [6, 6, 6, 6]
    assert [of.share for of, _ in peers] == [Share(0, 2), Share(1, 2)] * 2
    assert [of.stage for of, _ in peers] == [Share(0, 2)] * 2 + [Share(1, 2)] * 2


def test_ranks_with_the_same_layers_add_up_and_those_of_other_stages_do_not(tmp_path: Path) -> None:
    def total(peers: Peers) -> float:
        return float(peers.of_layers.sum_in_order(torch.tensor([10.0 ** (2 * peers.stage.rank + peers.share.rank)])))

    assert on_all_ranks(Mesh(pp=2, tp=2), f"file://{tmp_path}/ranks", total) == [11, 11, 1100, 1100]


def test_the_stream_goes_from_each_rank_to_the_one_with_its_part_in_the_next_stage(tmp_path: Path) -> None:
    def pass_on(peers: Peers) -> float:
        assert peers.of_stages is not None
        link = StageLink(peers.of_stages, peers.stage, hidden_size=2, dtype=torch.bfloat16, device=CPU)
        stream = torch.zeros(3, 2, dtype=torch.bfloat16) if peers.stage.is_first else link.receive(3)
        stream += peers.everyone.rank + 1
        if not peers.stage.is_last:
            link.send(stream)
        peers.everyone.least(0)  # none ends while another is at it
        return float(stream[2, 1])

    assert on_all_ranks(Mesh(pp=3, tp=2), f"file://{tmp_path}/ranks", pass_on) == [1, 2, 4, 6, 9, 12]


def test_ranks_of_several_hosts_meet_at_a_port() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert on_all_ranks(Mesh(tp=2), f"tcp://127.0.0.1:{port}", lambda of: of.everyone.least(of.everyone.rank)) == [0, 0]


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    placement = RankPlacement(rank=1, num_on_host=2, rendezvous=f"file://{tmp_path}/ranks")
    with pytest.raises(MachineError, match=r"rank 1 has waited 0\.05 s at file:.* for ranks 0, 2 of 3"):
        connect_ranks(placement, Mesh(tp=3), CPU, is_batch_invariant=True, limit_s=0.05)


def test_ranks_on_different_kinds_of_devices_are_refused_on_all_of_them(tmp_path: Path) -> None:
    def run(rank: int) -> str:
        placement = RankPlacement(rank=rank, num_on_host=2, rendezvous=f"file://{tmp_path}/ranks")
        device = torch.device("cuda" if rank else "cpu")
        with pytest.raises(ConfigError) as caught:
            connect_ranks(placement, Mesh(tp=2), device, is_batch_invariant=True, limit_s=30)
        return caught.value.message

    with ThreadPoolExecutor(2) as threads:
        assert all("--device cpu" in message for message in threads.map(run, range(2)))


def test_a_port_that_nobody_listens_at_is_named() -> None:
    placement = RankPlacement(rank=1, num_on_host=1, rendezvous="tcp://127.0.0.1:9")
    with pytest.raises(MachineError, match=r"tcp://127\.0\.0\.1:9"):
        connect_ranks(placement, Mesh(tp=2), CPU, is_batch_invariant=True, limit_s=0.1)


def test_the_way_to_a_host_gives_the_own_address() -> None:
    assert address_towards("127.0.0.1", 1) == "127.0.0.1"
    with pytest.raises(MachineError, match=r"--master-addr nowhere\.invalid"):
        address_towards("nowhere.invalid", 1)
