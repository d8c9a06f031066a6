"""The line of throughput figures."""

from __future__ import annotations

import asyncio

import pytest

from pagewire.frontend.http.engine_totals import EngineTotals
from pagewire.frontend.http.stats_log import StatsLog
from pagewire.ipc.outputs import StepStats


class Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_line_has_the_wording_that_log_readers_know():
    totals, clock = EngineTotals(), Clock()
    log = StatsLog(totals, "cpu", clock)
    clock.now += 10
    totals.update(
        StepStats(
            num_steps=5, num_prompt_tokens=1234, num_generation_tokens=567, num_running=3, num_waiting=2, num_blocks=8,
            num_used_blocks=2, prefix_cache_queries=200, prefix_cache_hits=50,
        ),
        core=("a", 1),
    )  # fmt: skip
    assert log.next_line() == (
        "Engine 000: Avg prompt throughput: 123.4 tokens/s, Avg generation throughput: 56.7 tokens/s, "
        "Running: 3 reqs, Waiting: 2 reqs, CPU KV cache usage: 25.0%, Prefix cache hit rate: 25.0%"
    )


def test_idle_engine_is_silent_after_one_line_of_rest():
    totals, clock = EngineTotals(), Clock()
    log = StatsLog(totals, "cuda", clock)
    assert log.next_line() is None
    totals.update(StepStats(num_steps=1, num_generation_tokens=10, num_running=1), core=("a", 1))
    clock.now += 10
    assert "Avg generation throughput: 1.0 tokens/s, Running: 1 reqs" in (log.next_line() or "")
    totals.update(StepStats(num_steps=2, num_generation_tokens=10), core=("a", 1))
    clock.now += 10
    line = log.next_line() or ""
    assert "Avg generation throughput: 0.0 tokens/s, Running: 0 reqs" in line
    assert "GPU KV cache usage" in line
    clock.now += 10
    assert log.next_line() is None


def test_waiting_request_is_not_idle():
    totals, clock = EngineTotals(), Clock()
    log = StatsLog(totals, "cpu", clock)
    totals.update(StepStats(num_steps=1, num_waiting=1), core=("a", 1))
    assert "Waiting: 1 reqs" in (log.next_line() or "")


def test_drafts_have_a_line_of_their_own_while_any_are_checked():
    totals = EngineTotals()
    log = StatsLog(totals, "cpu", Clock())
    assert log.next_draft_line() is None
    totals.update(StepStats(num_steps=1, num_draft_checks=4, num_draft_tokens=8, accepted_at=(3, 1)), core=("a", 1))
    assert log.next_draft_line() == (
        "SpecDecoding metrics: Mean acceptance length: 2.00, Accepted: 4 tokens, Drafted: 8 tokens, "
        "Per-position acceptance rate: 0.750, 0.250, Avg Draft acceptance rate: 50.0%"
    )
    assert log.next_draft_line() is None
    totals.update(StepStats(num_steps=2, num_draft_checks=6, num_draft_tokens=10, accepted_at=(3, 1)), core=("a", 1))
    line = log.next_draft_line() or ""
    assert "length: 1.00, Accepted: 0 tokens, Drafted: 2 tokens" in line


async def test_totals_are_refreshed_before_each_line(caplog: pytest.LogCaptureFixture):
    totals, clock, has_logged = EngineTotals(), Clock(), asyncio.Event()

    async def refresh() -> None:
        totals.update(StepStats(num_steps=1, num_generation_tokens=50, num_running=1), core=("a", 1))
        if len(caplog.messages) > 1:
            has_logged.set()

    with caplog.at_level("INFO", logger="pagewire"):
        running = asyncio.create_task(StatsLog(totals, "cpu", clock).run(0.0, refresh=refresh))
        async with asyncio.timeout(10):
            await has_logged.wait()
        running.cancel()
    assert "Running: 1 reqs" in caplog.messages[0]
