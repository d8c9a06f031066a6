"""Ranks as threads of one process: each with a group of its own, which meet in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from pagewire.gpu_executor.parallel.rank_group import RankGroup

T = TypeVar("T")
# A rank that left without a word would keep the others forever.
_TIMEOUT_S = 60.0


class ThreadedRanks:
    """A group's ranks. One computes at a time, until it has to wait for the others: not all kernels bear threads.

    Args:
        size: how many.
    """

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=_TIMEOUT_S)
        self._turn = threading.Lock()
        self._slots: list[object] = [None] * size
        self.groups = [ThreadGroup(rank, self._barrier, self._turn, self._slots) for rank in range(size)]

    def run(self, work: Callable[[int], T]) -> list[T]:
        """Call `work` with each rank's number and return what they return; raise what one of them raises.

        Each runs on a thread of its own, in inference mode.
        """

        def of_rank(rank: int) -> T:
            try:
                with self._turn, torch.inference_mode():
                    return work(rank)
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(len(self._slots)) as threads:
            futures = [threads.submit(of_rank, rank) for rank in range(len(self._slots))]
        self._barrier.reset()
        failures = [failure for future in futures if (failure := future.exception()) is not None]
        # The others broke off because of the one that failed.
        for failure in failures:
            if not isinstance(failure, threading.BrokenBarrierError):
                raise failure
        return [future.result() for future in futures]


class ThreadGroup(RankGroup):
    """The group as one rank sees it; made by `ThreadedRanks`."""

    def __init__(self, rank: int, barrier: threading.Barrier, turn: threading.Lock, slots: list[object]) -> None:
        self.rank = rank
        self.size = len(slots)
        self._barrier = barrier
        self._turn = turn
        self._slots = slots

    def sum_in_order(self, x: Tensor) -> Tensor:
        total, *others = (part.float() for part in self.gather(x))
        for part in others:
            total = total + part
        return total.to(x.dtype)

    def gather(self, x: Tensor) -> list[Tensor]:
        assert x.is_contiguous()
        parts = self._exchange(x.clone())
        assert len({(part.shape, part.dtype) for part in parts}) == 1, "ranks speak of different things"
        return parts

    def least(self, number: int) -> int:
        return min(self._exchange(number))

    def _exchange(self, mine: T) -> list[T]:
        self._slots[self.rank] = mine
        self._wait()
        everyones = list(self._slots)
        self._wait()  # until all have read
        return everyones  # type: ignore[return-value]  # all ranks exchange the same kind of thing

    def _wait(self) -> None:
        self._turn.release()
        try:
            self._barrier.wait()
        finally:
            self._turn.acquire()
