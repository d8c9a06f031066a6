"""An asyncio event loop on a thread of its own, for callers that block or have a loop of another kind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads. The thread is a daemon: it never keeps the interpreter alive."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:  # Any: what a coroutine is sent is asyncio's business
        """Run a coroutine and return its result; Ctrl-C while it runs cancels it and waits until it has ended."""
        done = threading.Event()

        async def run_and_tell() -> T:
            try:
                return await coroutine
            finally:
                done.set()

        future = asyncio.run_coroutine_threadsafe(run_and_tell(), self.loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            done.wait()
            raise

    def close(self) -> None:
        """Cancel what still runs and end the loop and its thread. Closing twice is fine."""
        if self.loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
