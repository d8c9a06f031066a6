"""What an executor tells its core of work that takes longer than a step: when it begins, and when it is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pagewire.ipc.steps import ExecutorBusy

# What compiles at once, out of Triton's cache, is not worth a line.
_WORTH_A_LINE_S = 0.2

logger = logging.getLogger(__name__)


class _Work(NamedTuple):
    """One piece of work that goes on."""

    reason: str
    limit_s: float
    started: float


class LongWork:
    """Announces work, and takes an announcement back when the work is over: until then a real hang would not show.

    Work may lie within other work, as a compilation within a capture. The core knows one limit at a time, that of the
    innermost; when that is over the next one out counts anew.

    Args:
        send: to the core.
        epoch: of this executor.
        clock: seconds, monotonic.
    """

    def __init__(
        self, send: Callable[[ExecutorBusy], None], epoch: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._send = send
        self._epoch = epoch
        self._clock = clock
        self._ongoing: list[_Work] = []

    def begin(self, reason: str, limit_s: float) -> None:
        """Tell that work begins.

        Args:
            reason: what it is, for the core's log.
            limit_s: seconds that it may take.
        """
        self._ongoing.append(_Work(reason, limit_s, self._clock()))
        self._tell(reason, limit_s)

    def end(self) -> float:
        """Tell that the work begun last is over; return the seconds that it took."""
        over = self._ongoing.pop()
        if self._ongoing:
            self._tell(self._ongoing[-1].reason, self._ongoing[-1].limit_s)
        else:
            self._tell(f"no longer {over.reason}", 0.0)
        return self._clock() - over.started

    @contextmanager
    def during(self, reason: str, limit_s: float) -> Iterator[None]:
        """Announce what happens inside; see `begin`."""
        depth = len(self._ongoing)
        self.begin(reason, limit_s)
        try:
            yield
        finally:
            del self._ongoing[depth + 1 :]  # work within that has failed has told no end
            self.end()

    def _tell(self, reason: str, limit_s: float) -> None:
        self._send(ExecutorBusy(executor_epoch=self._epoch, reason=reason, limit_s=limit_s))


class AnnouncedCompilations:
    """Announces kernels that are compiled when a step first needs them, which holds up all requests.

    Implements `CompilationWatch`.

    Args:
        work: tells the core.
        limit_s: seconds that one may take.
    """

    def __init__(self, work: LongWork, limit_s: float) -> None:
        self._work = work
        self._limit_s = limit_s

    def begin(self, kernel: str) -> None:
        """See `CompilationWatch.begin`."""
        self._work.begin(f"compiling {kernel}", self._limit_s)

    def end(self, kernel: str) -> None:
        """See `CompilationWatch.end`."""
        seconds = self._work.end()
        if seconds >= _WORTH_A_LINE_S:
            logger.info("compiled %s while serving, in %.1f s; requests waited for it", kernel, seconds)
