"""Reads adapters beside the steps: files of hundreds of megabytes take seconds, which no stream is to wait for."""

from __future__ import annotations

import contextlib
import os
import queue

from pagewire.ipc.errors import ErrorInfo
from pagewire.ipc.steps import AdapterLoaded, LoadAdapter

from ..completion import TorchThread
from .reading import ReadAdapter
from .store import AdapterStore

Ended = tuple[LoadAdapter, ReadAdapter | ErrorInfo]


class AdapterLoads:
    """Loads under way. All methods are for the thread that computes steps; the files are read by another one.

    Args:
        store: takes what was read.

    Attributes:
        fd: readable when a load has ended, until `take` is called.
    """

    def __init__(self, store: AdapterStore) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        self._store = store
        self._orders: queue.SimpleQueue[LoadAdapter] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._thread: _Reader | None = None

    def begin(self, order: LoadAdapter) -> None:
        """Have the files read; one adapter after the other."""
        if self._thread is None:
            self._thread = _Reader(self._store, self._orders, self._ended, self._write_fd)
            self._thread.start()
        self._orders.put(order)

    def take(self) -> list[AdapterLoaded]:
        """Put what was read by now where steps find it, between two of them; return the answers."""
        with contextlib.suppress(BlockingIOError):  # nothing has ended
            os.read(self.fd, 4096)
        answers = []
        while not self._ended.empty():
            order, read = self._ended.get()
            if not isinstance(read, ErrorInfo):
                error = self._store.try_put(order.adapter, read)
                digest = "" if error is not None else read.digest
            else:
                error, digest = read, ""
            answers.append(
                AdapterLoaded(
                    executor_epoch=order.executor_epoch, load_id=order.adapter.load_id, digest=digest, error=error
                )
            )
        return answers


class _Reader(TorchThread):
    """Reads one adapter after the other, and writes a byte after each."""

    def __init__(
        self,
        store: AdapterStore,
        orders: queue.SimpleQueue[LoadAdapter],
        ended: queue.SimpleQueue[Ended],
        write_fd: int,
    ) -> None:
        super().__init__(name="adapters", daemon=True)
        self._store = store
        self._orders = orders
        self._ended = ended
        self._write_fd = write_fd

    def run(self) -> None:
        while True:
            order = self._orders.get()
            self._ended.put((order, self._store.try_read(order.adapter)))
            os.write(self._write_fd, b"\0")
