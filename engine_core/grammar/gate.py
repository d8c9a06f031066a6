"""Where requests wait for their grammars, before anything else knows of them."""

from __future__ import annotations

import functools
from collections import OrderedDict
from enum import Enum
from typing import NamedTuple

from pagewire.ipc.errors import InvalidRequest, PagewireError
from pagewire.ipc.structured_outputs import Grammar

from ..request import Request
from .compiled import CompiledGrammar
from .fair_queue import FairQueue, Origin

# A compiled schema takes some hundred kilobytes, and grows with the texts that were read.
MAX_COMPILED = 64


class Lane(Enum):
    """Two grammars are compiled at a time: a new one, for a moment, and one that was found to take longer."""

    QUICK = "quick"
    SLOW = "slow"


class CompileResult(NamedTuple):
    """What became of an order: a grammar, or why there is none, or neither if it takes longer than its lane allows."""

    grammar: Grammar
    compiled: CompiledGrammar | None
    error: PagewireError | None = None


class _Awaited:
    """A grammar that is not there yet, and whoever waits for it."""

    def __init__(self) -> None:
        self.lane = Lane.QUICK
        self.is_ordered = False
        self._requests: dict[Origin, list[Request]] = {}

    def add(self, request: Request) -> bool:
        """Note a request that waits; return whether it is the only one of its origin."""
        origin = Origin.of(request)
        is_first = not self.has(origin)
        if is_first:
            self._requests[origin] = []
        self._requests[origin].append(request)
        return is_first

    def has(self, origin: Origin) -> bool:
        """Whether a request of that origin waits; the others have ended."""
        return any(request.is_held for request in reversed(self._requests.get(origin, ())))

    @property
    def origins(self) -> list[Origin]:
        """Whose requests wait, in the order in which they came."""
        return [origin for origin in self._requests if self.has(origin)]

    @property
    def held(self) -> list[Request]:
        """The requests that wait."""
        return [request for requests in self._requests.values() for request in requests if request.is_held]


class GrammarGate:
    """Keeps compiled grammars, and the requests that wait for others.

    Args:
        is_open: whether this engine follows grammars at all.
    """

    def __init__(self, *, is_open: bool) -> None:
        self._is_open = is_open
        self._compiled: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()  # the one asked for last at the end
        self._awaited: dict[Grammar, _Awaited] = {}
        self._queues = {lane: FairQueue(functools.partial(self._is_wanted, lane)) for lane in Lane}

    @property
    def num_held(self) -> int:
        """Requests that wait."""
        return sum(len(awaited.held) for awaited in self._awaited.values())

    def check(self, grammar: Grammar | None) -> None:
        """Refuse a grammar where none are followed.

        Raises:
            InvalidRequest: the engine was started so.
        """
        if grammar is not None and not self._is_open:
            raise InvalidRequest(
                "Structured output is disabled on this server (--structured-outputs-backend none).",
                param="structured_outputs",
            )

    def find(self, grammar: Grammar) -> CompiledGrammar | None:
        """Return a grammar that was compiled before, if it is still kept."""
        compiled = self._compiled.get(grammar)
        if compiled is None:
            return None
        if compiled.is_spent:
            del self._compiled[grammar]
            return None
        self._compiled.move_to_end(grammar)
        return compiled

    def hold(self, grammar: Grammar, request: Request) -> None:
        """Keep a request until its grammar is there."""
        awaited = self._awaited.setdefault(grammar, _Awaited())
        if awaited.add(request) and not awaited.is_ordered:
            self._queues[awaited.lane].add(Origin.of(request), grammar)

    def take_order(self, lane: Lane) -> Grammar | None:
        """Return the grammar that is to be compiled next in a lane, of those that somebody still waits for."""
        grammar = self._queues[lane].take()
        if grammar is not None:
            self._awaited[grammar].is_ordered = True
        return grammar

    def finish(self, result: CompileResult) -> list[Request]:
        """Take a result in, and return the requests that waited for it, without those that ended meanwhile."""
        if result.compiled is None and result.error is None:
            self._defer(result.grammar)
            return []
        if result.compiled is not None:
            self._compiled[result.grammar] = result.compiled
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        awaited = self._awaited.pop(result.grammar, None)
        return [] if awaited is None else awaited.held

    def _defer(self, grammar: Grammar) -> None:
        awaited = self._awaited[grammar]
        awaited.is_ordered = False
        awaited.lane = Lane.SLOW
        if not awaited.origins:
            del self._awaited[grammar]
        for origin in awaited.origins:
            self._queues[Lane.SLOW].add(origin, grammar)

    def _is_wanted(self, lane: Lane, origin: Origin, grammar: Grammar) -> bool:
        """Whether an entry of a queue still stands for somebody; what nobody waits for at all is forgotten."""
        awaited = self._awaited.get(grammar)
        if awaited is None or awaited.lane is not lane or awaited.is_ordered:
            return False
        if awaited.has(origin):
            return True
        if not awaited.origins:
            del self._awaited[grammar]
        return False
