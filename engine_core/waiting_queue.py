"""The order of admission."""

from __future__ import annotations

import heapq
from collections import Counter

from .request import Child, ChildStatus, OrderKey, Request


class WaitingQueue:
    """Children that wait for their first or next admission, best order key first.

    One heap serves both policies, because the order key holds the priority or 0. Under first come, first served nobody
    is ever overtaken, so whoever was preempted came before all that never ran: it goes to the head by its arrival.

    Attributes:
        num_new_requests: those among them that wait for their first step.
        num_new_tokens: of the prompts of those.
        num_with_adapter: how many of the children have each LoRA adapter, by its load id.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[OrderKey, Child]] = []
        self._held_back: list[tuple[OrderKey, Child]] = []  # not to be admitted, while one request is alone for example
        self._alone: Request | None = None
        self._last_arrival: int | None = None
        self._length = 0
        self.num_new_requests = 0
        self.num_new_tokens = 0
        self.num_with_adapter: Counter[int] = Counter()

    def __len__(self) -> int:
        return self._length

    def push(self, child: Child) -> None:
        """Let a child wait."""
        if self._may_run(child):
            heapq.heappush(self._heap, (child.order_key, child))
        else:
            self._held_back.append((child.order_key, child))
        self._count(child, 1)

    def isolate(self, request: Request | None) -> None:
        """Hold back all children but those of one request; with None, none of them."""
        self._alone = request
        self._divide()

    def hold(self, last_arrival: int | None) -> None:
        """Hold back the children of requests that arrived later; with None, none of them."""
        self._last_arrival = last_arrival
        self._divide()

    def peek(self) -> Child | None:
        """Return the child to admit next, or None."""
        while self._heap and self._heap[0][1].status is ChildStatus.FINISHED:
            heapq.heappop(self._heap)  # was discarded
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Child:
        """Take the child that `peek` returned."""
        child = heapq.heappop(self._heap)[1]
        self._count(child, -1)
        return child

    def discard(self, child: Child) -> None:
        """Note that a waiting child has finished: it is dropped when it comes to the head."""
        self._count(child, -1)

    def children(self) -> list[Child]:
        """Return the waiting children in no particular order."""
        waiting = self._heap + self._held_back
        return [child for _, child in waiting if child.status is not ChildStatus.FINISHED]

    def _may_run(self, child: Child) -> bool:
        request = child.request
        is_early = self._last_arrival is None or request.arrival <= self._last_arrival
        return is_early and (self._alone is None or request is self._alone)

    def _divide(self) -> None:
        waiting = self._heap + self._held_back
        self._heap = [entry for entry in waiting if self._may_run(entry[1])]
        self._held_back = [entry for entry in waiting if not self._may_run(entry[1])]
        heapq.heapify(self._heap)

    def _count(self, child: Child, change: int) -> None:
        self._length += change
        if child.request.adapter_id:
            self.num_with_adapter[child.request.adapter_id] += change
        if child.request.first_scheduled_s is None:  # it has one child until its first step is back
            self.num_new_requests += change
            self.num_new_tokens += change * child.request.num_prompt_tokens
