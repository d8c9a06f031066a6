from __future__ import annotations

import asyncio

import pytest

from pagewire.frontend.client.gathering import gather_all


class Worker:
    """Waits until it is let go, and notes its end."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.has_ended = False

    async def work(self, result: int) -> int:
        try:
            await self.go.wait()
            return result
        finally:
            self.has_ended = True


async def test_results_come_in_order_whoever_is_first():
    slow, fast = Worker(), Worker()
    gathering = asyncio.create_task(gather_all([slow.work(1), fast.work(2)]))
    fast.go.set()
    await asyncio.sleep(0)
    slow.go.set()
    assert await gathering == [1, 2]


async def test_one_that_fails_ends_the_others():
    async def fail() -> int:
        raise ValueError("no")

    worker = Worker()
    with pytest.raises(ValueError, match="no"):
        await gather_all([worker.work(1), fail()])
    assert worker.has_ended


async def test_whoever_stops_waiting_ends_all():
    workers = [Worker(), Worker()]
    gathering = asyncio.create_task(gather_all(worker.work(1) for worker in workers))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gathering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gathering
    assert all(worker.has_ended for worker in workers)
