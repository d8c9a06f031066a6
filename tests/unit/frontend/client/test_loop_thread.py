from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from pagewire.frontend.client.loop_thread import Job, LoopThread


@pytest.fixture
def thread():
    loop_thread = LoopThread("test")
    yield loop_thread
    loop_thread.close()


def test_results_and_errors_come_back(thread):
    async def divide(a: int, b: int) -> float:
        await asyncio.sleep(0)
        return a / b

    assert thread.run(divide(6, 3)) == 2
    with pytest.raises(ZeroDivisionError):
        thread.run(divide(1, 0))


async def test_it_works_under_a_running_loop(thread):
    async def name() -> str:
        return threading.current_thread().name

    assert thread.run(name()) == "test"


def test_ctrl_c_cancels_the_coroutine_and_waits_for_its_end(thread):
    steps: list[str] = []
    main_thread = threading.get_ident()

    async def wait_for_ever() -> None:
        try:
            signal.pthread_kill(main_thread, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        thread.run(wait_for_ever())
    assert steps == ["cleaned up"]

    async def next_one() -> int:
        return 1

    assert thread.run(next_one()) == 1


@pytest.mark.parametrize("is_scheduled", [False, True])
def test_what_breaks_the_start_itself_leaves_no_coroutine_behind(thread, monkeypatch, is_scheduled):
    start = Job.start

    def interrupted(job: Job) -> None:
        if is_scheduled:
            start(job)
        raise KeyboardInterrupt

    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async def num_other_tasks() -> int:
        return len(asyncio.all_tasks()) - 1

    monkeypatch.setattr(Job, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        thread.run(wait_for_ever())
    monkeypatch.undo()
    assert thread.run(num_other_tasks()) == 0


def test_close_cancels_what_runs_and_ends_the_thread():
    loop_thread = LoopThread("closing")

    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    job = loop_thread.start(wait_for_ever())
    loop_thread.close()
    loop_thread.close()
    with pytest.raises(asyncio.CancelledError):
        job.result()
    assert not loop_thread.is_running
    assert "closing" not in [thread.name for thread in threading.enumerate()]


def test_a_fork_does_not_wait_for_a_thread_that_it_lacks(thread, monkeypatch):
    pid = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: pid + 1)
        assert not thread.is_running
        thread.close()
    assert thread.is_running


def test_an_end_that_comes_to_the_loops_own_thread_does_not_wait_for_itself():
    loop_thread = LoopThread("own")
    closed = threading.Event()

    def close() -> None:
        loop_thread.close()
        closed.set()

    async def let_go() -> None:
        loop_thread.run_outside(close)

    loop_thread.start(let_go())
    assert closed.wait(10)
    assert not loop_thread.is_running
