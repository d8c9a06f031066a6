"""Ranks as threads of one process that compute at the same time, over memory that they share as processes would."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from typing import TypeVar

import torch

from pagewire.gpu_executor.parallel.shared_memory_group import SharedMemoryGroup

T = TypeVar("T")
# A rank that left without a word would keep the others forever.
_TIMEOUT_S = 60.0


class SharedMemoryRanks:
    """A group's ranks; to be used as `ThreadedRanks` is.

    Args:
        size: how many.
        area_bytes: what a rank hands over at once: small, so that tensors go in pieces.
    """

    def __init__(self, size: int, area_bytes: int = 4096) -> None:
        memory = mmap.mmap(-1, SharedMemoryGroup.num_bytes(size, area_bytes))
        self.groups = [SharedMemoryGroup(memory, rank, size, area_bytes) for rank in range(size)]

    def run(self, work: Callable[[int], T]) -> list[T]:
        """Call `work` with each rank's number and return what they return; raise what one of them raises.

        Each runs on a thread of its own, in inference mode. One that fails leaves the others waiting; they end with the
        process.
        """
        results: dict[int, T] = {}
        failures: list[BaseException] = []
        is_over = threading.Semaphore(0)

        def run_rank(rank: int) -> None:
            try:
                with torch.inference_mode():
                    results[rank] = work(rank)
            except BaseException as exc:
                failures.append(exc)
            is_over.release()

        for rank in range(len(self.groups)):
            threading.Thread(target=run_rank, args=(rank,), daemon=True).start()
        for _ in self.groups:
            assert is_over.acquire(timeout=_TIMEOUT_S), "a rank waits for others that do not come"
            if failures:
                raise failures[0]
        return [results[rank] for rank in range(len(self.groups))]
