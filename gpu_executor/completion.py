"""Turns a point in a device's work into an event that a poll sees."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
from typing import NoReturn, Protocol


class Completable(Protocol):
    """Something that is done sooner or later."""

    def wait(self) -> None:
        """Block until it is, without the interpreter."""
        ...


class CompletionNotice:
    """A descriptor that becomes readable when something that is watched is done.

    A poll waits for sockets and files; a GPU offers neither, but a call that waits for it. So a thread makes that call.
    It starts with the first thing to watch, and ends with the process, which has to end by `end_process`: nobody waits
    for the thread, since its device may hang.
    """

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        self._watched: queue.SimpleQueue[Completable] = queue.SimpleQueue()
        self._thread: _WaitingThread | None = None

    def watch(self, work: Completable) -> None:
        """Have the descriptor readable once `work`, and all that was watched before, is done."""
        if self._thread is None:
            self._thread = _WaitingThread(self._watched, self._write_fd)
            self._thread.start()
        self._watched.put(work)

    def clear(self) -> None:
        """Take back what was noticed up to now."""
        with contextlib.suppress(BlockingIOError):  # nothing was
            os.read(self.fd, 4096)


class TorchThread(threading.Thread):
    """A thread that never ends, and that may be in torch when the process does."""


class _WaitingThread(TorchThread):
    """Waits for one thing after the other, and writes a byte after each."""

    def __init__(self, watched: queue.SimpleQueue[Completable], write_fd: int) -> None:
        super().__init__(name="completions", daemon=True)
        self._watched = watched
        self._write_fd = write_fd

    def run(self) -> None:
        while True:
            # A device that failed says so again to whoever is woken and asks for the results.
            with contextlib.suppress(RuntimeError):
                self._watched.get().wait()
            os.write(self._write_fd, b"\0")


def end_process(code: int) -> NoReturn:
    """End this process as `sys.exit` does, whatever a `TorchThread` is at.

    A thread that comes back from a library while the interpreter shuts down is ended where it asks for the interpreter.
    In the midst of torch's C++ that ends the process by SIGABRT instead. So with such a thread the interpreter does not
    shut down: all that is written is written out, and the rest is the system's to take back.

    Args:
        code: of the exit.
    """
    if any(isinstance(thread, TorchThread) for thread in threading.enumerate()):
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)
