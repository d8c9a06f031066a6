"""A thread of the compiler's: it takes jobs one by one, and tells of each."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Job = TypeVar("Job")


class Worker(Generic[Job]):
    """Does jobs in their order. The thread comes with the first one.

    Args:
        name: of the thread.
        work: does a job, and tells of it; it raises nothing.
        on_end: is called when there will be no more jobs.
    """

    def __init__(self, name: str, work: Callable[[Job], None], on_end: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._work = work
        self._on_end = on_end
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.is_started = False

    def order(self, job: Job) -> None:
        """Have a job done."""
        if not self.is_started:
            self.is_started = True
            # A daemon: the core's end does not wait for a grammar that compiles, and the helper ends with the core.
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        self._jobs.put(job)

    def end(self) -> None:
        """End the thread behind the job that it is at, if there is one."""
        if self.is_started:
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._work(job)
        self._on_end()
