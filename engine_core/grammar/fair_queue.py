"""Grammars that wait to be compiled, by turns of those who ask for them."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

from pagewire.ipc.channels import ClientId
from pagewire.ipc.structured_outputs import Grammar

from ..request import Request

# Entries that nobody waits for lie in the queue until there are twice as many as it need have, and so many more.
_SPARE_ENTRIES = 64


class Origin(NamedTuple):
    """Who asks: as far as the core can tell people apart, by their connection and by what divides their caches."""

    client: ClientId
    cache_salt: str

    @classmethod
    def of(cls, request: Request) -> Origin:
        """Return who sent a request."""
        return cls(request.client, request.cache_salt)


class FairQueue:
    """One grammar of each origin in turn; of one origin's, the first that came.

    So an origin's k-th grammar waits for k grammars of each other one at most, however many those have sent; the one
    that is being compiled counts among them.

    Args:
        is_wanted: whether somebody of that origin still waits for a grammar.
    """

    def __init__(self, is_wanted: Callable[[Origin, Grammar], bool]) -> None:
        self._is_wanted = is_wanted
        self._queues: OrderedDict[Origin, deque[Grammar]] = OrderedDict()  # whose turn is next comes first
        self._last: Origin | None = None  # whose turn was the last
        self._num_entries = 0
        self._most_entries = _SPARE_ENTRIES

    def add(self, origin: Origin, grammar: Grammar) -> None:
        """Put a grammar behind those that the origin has here."""
        self._queues.setdefault(origin, deque()).append(grammar)
        self._num_entries += 1
        if self._num_entries > self._most_entries:
            self._drop_unwanted()

    def take(self) -> Grammar | None:
        """Return the grammar whose turn it is, None if there is none; those that nobody wants any more take no turn."""
        if self._last is not None and self._last in self._queues:  # behind those as well who came during its turn
            self._queues.move_to_end(self._last)
        while self._queues:
            origin, queue = next(iter(self._queues.items()))
            grammar = self._take_wanted(origin, queue)
            if not queue:
                del self._queues[origin]
            if grammar is not None:
                self._last = origin
                return grammar
        return None

    def _take_wanted(self, origin: Origin, queue: deque[Grammar]) -> Grammar | None:
        while queue:
            grammar = queue.popleft()
            self._num_entries -= 1
            if self._is_wanted(origin, grammar):
                return grammar
        return None

    def _drop_unwanted(self) -> None:
        for origin, queue in list(self._queues.items()):
            wanted = deque(dict.fromkeys(grammar for grammar in queue if self._is_wanted(origin, grammar)))
            self._num_entries += len(wanted) - len(queue)
            if wanted:
                self._queues[origin] = wanted
            else:
                del self._queues[origin]
        self._most_entries = 2 * self._num_entries + _SPARE_ENTRIES
