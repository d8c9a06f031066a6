"""Memory without a name: who finds it, what is left of it, and what becomes of ranks that can't have it."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pagewire.gpu_executor.parallel.process_groups import Store, distributed
from pagewire.gpu_executor.parallel.shared_memory import share_memory

NUM_RANKS = 3
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no files without a name")


def on_all_ranks(directory: Path, num_bytes: Callable[[int], int] = lambda rank: 4096) -> list[mmap.mmap | None]:
    def share(rank: int) -> mmap.mmap | None:
        store: Store = distributed.FileStore(str(directory / "store"), NUM_RANKS)
        return share_memory(store, "memory", rank, NUM_RANKS, num_bytes(rank))

    with ThreadPoolExecutor(NUM_RANKS) as threads:
        return list(threads.map(share, range(NUM_RANKS)))


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@ON_LINUX
def test_all_ranks_map_the_same_zeros_and_no_file_is_left(tmp_path: Path) -> None:
    num_open = num_descriptors()
    memories = on_all_ranks(tmp_path)
    for rank, memory in enumerate(memories):
        assert memory is not None
        assert memory[:] == b"".join(bytes([other + 1]) for other in range(rank)).ljust(4096, b"\0")
        memory[rank] = rank + 1
    assert num_descriptors() <= num_open + NUM_RANKS  # the mappings' own
    assert {path.name for path in tmp_path.iterdir()} <= {"store"}


@ON_LINUX
def test_another_process_maps_the_same(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(tmp_path / "store")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    memory = share_memory(distributed.FileStore(str(tmp_path / "store"), 2), "memory", 0, 2, 4096)
    assert memory is not None
    assert child.stdout is not None
    assert child.stdout.readline() == b"wrote\n"
    assert memory[:3] == b"abc"
    memory[:3] = b"xyz"
    assert child.communicate(b"\n", timeout=60)[0] == b"b'xyz'\n"


_CHILD = """
import sys
from pagewire.gpu_executor.parallel.process_groups import distributed
from pagewire.gpu_executor.parallel.shared_memory import share_memory
memory = share_memory(distributed.FileStore(sys.argv[1], 2), "memory", 1, 2, 4096)
memory[:3] = b"abc"
print("wrote", flush=True)
sys.stdin.readline()
print(memory[:3])
"""


@pytest.mark.parametrize("rank", range(NUM_RANKS))
def test_no_rank_has_it_if_one_has_no_use_for_it(tmp_path: Path, rank: int) -> None:
    assert on_all_ranks(tmp_path, lambda other: 0 if other == rank else 4096) == [None] * NUM_RANKS


@ON_LINUX
def test_no_rank_has_it_if_the_system_gives_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert on_all_ranks(tmp_path) == [None] * NUM_RANKS


@ON_LINUX
@pytest.mark.parametrize("path", ["{file}", "/nowhere"])
def test_what_lies_elsewhere_under_that_number_is_not_taken_for_it(tmp_path: Path, path: str) -> None:
    """A rank in a container of its own: the first one's process has another number there."""
    other = tmp_path / "other"
    other.write_bytes(bytes(4096))
    store: Store = distributed.FileStore(str(tmp_path / "store"), 2)
    store.set("memory/file", f"{path.format(file=other)} 1 2")
    store.set("memory/mapped/0", b"1")
    assert share_memory(store, "memory", 1, 2, 4096) is None
    assert store.get("memory/mapped/1") == b"0"
