"""An asyncio event loop on a thread of its own, for callers that block or have a loop of another kind."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads. The thread is a daemon: it never keeps the interpreter alive."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._owner_pid = os.getpid()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether coroutines can be run: not after `close`, and not in a fork of the process, where no thread is."""
        return not self._loop.is_closed() and os.getpid() == self._owner_pid

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Job[T]:  # Any: what a coroutine is sent is asyncio's business
        """Start a coroutine and go on."""
        assert self.is_running
        job = Job(self._loop, coroutine)
        job.start()
        return job

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:  # Any: as above
        """Run a coroutine and return its result. Ctrl-C cancels it, and comes through when it has ended."""
        assert self.is_running
        return Job(self._loop, coroutine).run()

    def run_outside(self, action: Callable[[], None]) -> None:
        """Run a blocking action that uses this thread, from whatever thread an object's end comes to.

        The garbage collector runs on any thread; on this one, the action would wait for itself.
        """
        if threading.current_thread() is self._thread:
            threading.Thread(target=action, name=f"{self._thread.name}-end").start()
        else:
            action()

    def close(self) -> None:
        """Cancel what still runs, end the loop and its thread. Closing twice is fine."""
        if self.is_running:
            self.run(_cancel_others())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class Job(Generic[T]):
    """A coroutine on its way in another thread's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:  # Any: as above
        self._loop = loop
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._outcome: Future[T] = Future()

    def start(self) -> None:
        """Put it on its way."""
        self._loop.call_soon_threadsafe(self._start)

    def result(self) -> T:
        """Wait for the end; whatever breaks the wait (Ctrl-C) cancels the coroutine first."""
        try:
            return self._outcome.result()
        finally:
            self._end()

    def run(self) -> T:
        """Start and wait as one: what comes right after the start (Ctrl-C) is no less a break."""
        try:
            self.start()
            return self._outcome.result()
        finally:
            self._end()

    def _end(self) -> None:
        if not self._outcome.done():
            self._loop.call_soon_threadsafe(self._cancel)
            wait([self._outcome])

    def _start(self) -> None:
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._hand_over)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self._outcome.done():
            # The loop runs its callbacks in order: the start never came to it.
            self._coroutine.close()
            self._outcome.set_exception(asyncio.CancelledError())

    def _hand_over(self, task: asyncio.Task[T]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self._outcome.set_result(task.result())
        else:
            self._outcome.set_exception(error)


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
