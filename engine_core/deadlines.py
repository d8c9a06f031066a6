"""Which requests have run out of the time that they were given."""

from __future__ import annotations

import heapq

from pagewire.ipc.errors import DeadlineExceeded, describe_seconds

from .request import Request

# Entries of ended requests lie in the heap until it is twice as long as it need be, and this much longer.
_SPARE_ENTRIES = 64


class Deadlines:
    """The living requests that have a deadline, the next one to fall due first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []  # (deadline_s, arrival, request)
        self._living: set[Request] = set()

    def add(self, request: Request) -> None:
        """Watch a request from here on, if it has a deadline."""
        if request.deadline_s is not None:
            self._living.add(request)
            heapq.heappush(self._heap, (request.deadline_s, request.arrival, request))

    def discard(self, request: Request) -> None:
        """Watch it no more, as it ended; one that had no deadline is passed over."""
        self._living.discard(request)
        # Most requests end long before their time: without this the heap would hold minutes' worth of them.
        if len(self._heap) > 2 * len(self._living) + _SPARE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[2] in self._living]
            heapq.heapify(self._heap)

    def next_s(self) -> float | None:
        """Return when the next request falls due, on the clock of `Request.deadline_s`; None if none will."""
        while self._heap and self._heap[0][2] not in self._living:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_late(self, now: float) -> list[Request]:
        """Return the requests whose time is over, and watch them no more.

        Args:
            now: seconds on the clock of `Request.deadline_s`.
        """
        late: list[Request] = []
        while (next_s := self.next_s()) is not None and next_s <= now:
            request = heapq.heappop(self._heap)[2]
            self._living.discard(request)
            late.append(request)
        return late


def late_error(request: Request) -> DeadlineExceeded:
    """Return what a request fails of whose time is over."""
    assert request.deadline_s is not None
    num_tokens = sum(child.num_output_tokens for child in request.children.values())
    # Of a request that was added again, only what was left of its time is known here.
    limit = (
        "in time" if request.is_readded else f"within its {describe_seconds(request.deadline_s - request.arrival_s)}"
    )
    return DeadlineExceeded(
        f"The request was not finished {limit}; it has {num_tokens} output tokens. "
        "Give it a longer timeout, or ask for fewer tokens.",
        param="timeout",
    )
