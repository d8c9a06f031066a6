"""When a call's time is over: what happens before the engine has it is bounded here, the rest by the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pagewire.ipc.errors import DeadlineExceeded


@dataclass(frozen=True)
class Deadline:
    """The end of one call's time.

    Attributes:
        at_s: by `clock`; None if the call may take as long as it likes.
        clock: seconds, monotonic.
    """

    at_s: float | None
    clock: Callable[[], float]

    def left_s(self) -> float | None:
        """Return the seconds that are left; None for no limit.

        Raises:
            DeadlineExceeded: none are.
        """
        if self.at_s is None:
            return None
        left_s = self.at_s - self.clock()
        if left_s <= 0:
            raise _late()
        return left_s

    @asynccontextmanager
    async def bound(self) -> AsyncIterator[None]:
        """Cut off what is awaited in the block when the time is over.

        Raises:
            DeadlineExceeded: it was cut off, or the time was over before.
        """
        timeout = asyncio.timeout(self.left_s())
        try:
            async with timeout:
                yield
        except TimeoutError:
            if timeout.expired():
                raise _late() from None
            raise


def _late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "The request's time was over before it reached the engine. Give it a longer timeout, or a shorter prompt.",
        param="timeout",
    )
