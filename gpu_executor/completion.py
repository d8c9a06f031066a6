"""Turns a point in a device's work into an event that a poll sees."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from typing import Protocol


class Completable(Protocol):
    """Something that is done sooner or later."""

    def wait(self) -> None:
        """Block until it is, without the interpreter."""
        ...


class CompletionNotice:
    """A descriptor that becomes readable when something that is watched is done.

    A poll waits for sockets and files; a GPU offers neither, but a call that waits for it. So a thread makes that call.
    It starts with the first thing to watch, and ends with the process: it must not keep a process alive whose device
    hangs.
    """

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        self._watched: queue.SimpleQueue[Completable] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def watch(self, work: Completable) -> None:
        """Have the descriptor readable once `work`, and all that was watched before, is done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._wait_for_each, name="completions", daemon=True)
            self._thread.start()
        self._watched.put(work)

    def clear(self) -> None:
        """Take back what was noticed up to now."""
        with contextlib.suppress(BlockingIOError):  # nothing was
            os.read(self.fd, 4096)

    def _wait_for_each(self) -> None:
        while True:
            # A device that failed says so again to whoever is woken and asks for the results.
            with contextlib.suppress(RuntimeError):
                self._watched.get().wait()
            os.write(self._write_fd, b"\0")
