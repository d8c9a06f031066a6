"""Where requests wait for their grammars, before anything else knows of them."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from pagewire.ipc.errors import InvalidRequest, PagewireError
from pagewire.ipc.structured_outputs import Grammar

from ..request import Request
from .compiled import CompiledGrammar

# A compiled schema takes some hundred kilobytes, and grows with the texts that were read.
MAX_COMPILED = 64


class CompileResult(NamedTuple):
    """What became of an order: a grammar, or why there is none."""

    grammar: Grammar
    compiled: CompiledGrammar | None
    error: PagewireError | None = None


class GrammarGate:
    """Keeps compiled grammars, and the requests that wait for others.

    Args:
        is_open: whether this engine follows grammars at all.
    """

    def __init__(self, *, is_open: bool) -> None:
        self._is_open = is_open
        self._compiled: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()  # the one asked for last at the end
        self._waiting: dict[Grammar, list[Request]] = {}
        self._orders: deque[Grammar] = deque()

    @property
    def num_held(self) -> int:
        """Requests that wait."""
        return sum(request.is_held for waiting in self._waiting.values() for request in waiting)

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
        waiting = self._waiting.get(grammar)
        if waiting is None:
            self._waiting[grammar] = [request]
            self._orders.append(grammar)
        else:
            waiting.append(request)

    def take_order(self) -> Grammar | None:
        """Return the grammar that is to be compiled next, the first that somebody still waits for."""
        while self._orders:
            grammar = self._orders.popleft()
            if any(request.is_held for request in self._waiting[grammar]):
                return grammar
            del self._waiting[grammar]
        return None

    def finish(self, result: CompileResult) -> list[Request]:
        """Take a result in, and return the requests that waited for it, without those that ended meanwhile."""
        if result.compiled is not None:
            self._compiled[result.grammar] = result.compiled
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return [request for request in self._waiting.pop(result.grammar, []) if request.is_held]
