"""What carries sums between ranks: memory on one host, where compiled kernels are there, else gloo."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing, load_library
from pagewire.gpu_executor.parallel.choose_group import make_rank_group
from pagewire.gpu_executor.parallel.process_groups import distributed
from pagewire.gpu_executor.parallel.rank_group import ALONE, RankGroup
from pagewire.gpu_executor.parallel.share import Share
from pagewire.gpu_executor.parallel.shared_memory_group import SharedMemoryGroup
from pagewire.gpu_executor.parallel.torch_group import TorchGroup

CPU = torch.device("cpu")


def join_all(directory: Path, size: int, address: str) -> list[RankGroup]:
    def join(rank: int) -> RankGroup:
        store = distributed.FileStore(str(directory / "store"), size)
        return make_rank_group(store, "layers 0", Share(rank, size), CPU, address=address, is_batch_invariant=True)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(join, range(size)))


def test_a_single_rank_is_alone(tmp_path: Path) -> None:
    assert join_all(tmp_path, 1, "127.0.0.1") == [ALONE]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is shared on Linux")
def test_ranks_of_one_host_share_memory(tmp_path: Path) -> None:
    try:
        load_library()
    except LibraryMissing as exc:
        pytest.skip(str(exc))
    groups = join_all(tmp_path, 2, "127.0.0.1")
    assert all(isinstance(group, SharedMemoryGroup) for group in groups)
    assert [(group.rank, group.size) for group in groups] == [(0, 2), (1, 2)]
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda group: group.least(group.rank + 3), groups)) == [3, 3]


def test_ranks_of_several_hosts_use_gloo(tmp_path: Path) -> None:
    assert all(isinstance(group, TorchGroup) for group in join_all(tmp_path, 2, "127.0.0.2"))


def test_ranks_without_compiled_kernels_use_gloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> int:
        raise LibraryMissing

    monkeypatch.setattr(SharedMemoryGroup, "num_bytes", refuse)
    assert all(isinstance(group, TorchGroup) for group in join_all(tmp_path, 2, "127.0.0.1"))
