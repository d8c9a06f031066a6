"""When an executor that says nothing counts as hung."""

from __future__ import annotations

import math

# The core looks several times a second while it expects something. After a longer pause it was stopped itself (a
# terminal's Ctrl-Z stops all processes at once, a debugger one), and the executors had no less a right to be silent.
_MAX_PAUSE_S = 1.0


class StallWatch:
    """The time until which the executors have to say something. It has no clock: it is told the time.

    Args:
        limit_s: seconds without an answer that are tolerated, whatever the executors have announced.

    Attributes:
        allowed_s: how long the silence may last that is watched now.
        is_announced: whether that is because the executors have asked for more than the limit.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self.allowed_s = limit_s
        self.is_announced = False
        self._deadline = math.inf
        self._busy_until: dict[int, float] = {}
        self._last_look = -math.inf

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is expected."""
        return self._deadline < math.inf

    def expect(self, now: float, limit_s: float = 0.0) -> None:
        """Expect something from now on, within `limit_s` seconds if that is more than the limit.

        While the executors are at work that they have announced, the time begins when that may last no longer.
        """
        busy_until = max(self._busy_until.values(), default=now)
        self.allowed_s = max(limit_s, self._limit_s) + max(busy_until - now, 0.0)
        self.is_announced = self.allowed_s > self._limit_s
        self._deadline = now + self.allowed_s
        self._last_look = now

    def announce(self, now: float, limit_s: float, rank: int = 0) -> None:
        """Note that one of the executors is at work between two steps, which may take `limit_s` seconds from now on.

        They may owe an answer already, or be asked for one while it is at it. An answer does not end that time: it may
        be one that was on its way. Its announcement of 0 seconds does; others are waited for until the last is done.
        """
        self._busy_until[rank] = now + limit_s
        if self.is_waiting:
            self.expect(now)

    def rest(self) -> None:
        """Expect nothing: the executors have no work."""
        self._deadline = math.inf

    def start_over(self) -> None:
        """Expect nothing, and forget what was announced: those executors are gone."""
        self.rest()
        self._busy_until.clear()

    def is_overdue(self, now: float) -> bool:
        """Return whether the time is over. Whatever has arrived must have been taken in before."""
        pause_s = now - self._last_look
        if pause_s > _MAX_PAUSE_S:
            self._deadline += pause_s
        self._last_look = now
        return now > self._deadline
