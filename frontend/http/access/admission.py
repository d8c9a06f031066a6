"""Whether the server takes new requests, and whether it still answers some: what a drain closes and waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pagewire.ipc.errors import Overloaded

# A server that drains ends soon. Another one behind the same balancer takes the request at once; without one, this is
# about what starting anew takes.
_RETRY_AFTER_S = 5


class Admission:
    """The door of one HTTP server: open until it is closed for good."""

    def __init__(self) -> None:
        self._is_closed = False
        self._num_answering = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def is_closed(self) -> bool:
        """Whether new requests are refused."""
        return self._is_closed

    @property
    def num_answering(self) -> int:
        """Requests that are being answered now."""
        return self._num_answering

    def close(self) -> None:
        """Refuse new requests from now on; those inside go on. Closing twice is fine."""
        self._is_closed = True

    def refusal(self) -> Overloaded:
        """Return what a refused request is told."""
        return Overloaded(
            "The server is shutting down; send the request to another one, or again later.",
            retry_after_s=_RETRY_AFTER_S,
        )

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count a request as being answered while the context is open."""
        self._num_answering += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_answering -= 1
            if self._num_answering == 0:
                self._is_idle.set()

    async def wait_idle(self) -> None:
        """Wait until no request is being answered."""
        await self._is_idle.wait()
