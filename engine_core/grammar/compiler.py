"""Compiles the engine's grammars beside its loop: threads, a helper process, a descriptor that tells of results."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import zmq

from pagewire.ipc.errors import EngineError, PagewireError

from .compiled import CompiledGrammar
from .gate import CompileResult, Lane
from .worker import Worker

if TYPE_CHECKING:
    import llguidance

    from pagewire.ipc.structured_outputs import Grammar

    from .compiled import TokenMatcher
    from .grammars import Grammars
    from .helper import GrammarHelper
    from .vocabulary_source import VocabularySource

logger = logging.getLogger(__name__)

# Seconds of computing that a grammar may take. What people write takes milliseconds, a schema of 60 kB a tenth of a
# second, one of 200 kB half a second. What takes longer than the first is begun anew with the second, beside others.
LIMITS_S = {Lane.QUICK: 0.25, Lane.SLOW: 5.0}


class GrammarCompiler:
    """Takes an engine's orders and brings it the results.

    What isn't asked for costs nothing: threads, helper and vocabulary come with the first grammar. The helper proves
    that a grammar compiles within its limits; then a thread builds the matcher that the core uses, with the
    interpreter free for the loop. Another one makes the next automata of grammars in use, which do not wait for that.

    Args:
        source: the vocabulary.
        log_level: of the helper.
        poller: the loop's.
    """

    def __init__(self, source: VocabularySource, *, log_level: str, poller: zmq.Poller) -> None:
        self._results: queue.SimpleQueue[Callable[[Grammars], None]] = queue.SimpleQueue()
        self._busy: set[Lane] = set()
        self._compilations = _Compilations(source, log_level)
        self._lanes = {
            lane: Worker(f"{lane.value}-grammars", functools.partial(self._compile, lane), self._compilations.end)
            for lane in Lane
        }
        self._next = Worker("automata", self._make_successor)
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        poller.register(self._read_fd, zmq.POLLIN)

    def exchange(self, grammars: Grammars) -> None:
        """Bring the engine what is compiled, and take what it wants compiled next.

        One grammar a lane at a time: those whose requests end before their turn are never compiled, so whoever floods
        an engine with slow ones and goes away holds up nobody.
        """
        if self.is_started:
            with contextlib.suppress(BlockingIOError):
                os.read(self._read_fd, 4096)
            with contextlib.suppress(queue.Empty):
                while True:
                    self._results.get_nowait()(grammars)
        for lane, worker in self._lanes.items():
            if lane not in self._busy and (grammar := grammars.take_order(lane)) is not None:
                self._busy.add(lane)
                worker.order(grammar)
        for compiled in grammars.take_successor_orders():
            self._next.order(compiled)

    @property
    def is_started(self) -> bool:
        """Whether anything was ordered yet."""
        return any(worker.is_started for worker in (*self._lanes.values(), self._next))

    def close(self) -> None:
        """End the helper; what was ordered is dropped."""
        for worker in (*self._lanes.values(), self._next):
            worker.end()

    def _compile(self, lane: Lane, grammar: Grammar) -> None:
        result = self._compilations.compile(grammar, lane)

        def bring(grammars: Grammars) -> None:
            self._busy.discard(lane)
            grammars.finish(result)

        self._tell(bring)

    def _make_successor(self, compiled: CompiledGrammar) -> None:
        successor: TokenMatcher | None = None
        try:
            successor = compiled.make_successor()
        # Nobody else is here to see it, and steps may wait for it.
        except Exception:
            logger.exception("a grammar's next automaton can't be made")
        self._tell(lambda grammars: grammars.succeed(compiled, successor))

    def _tell(self, result: Callable[[Grammars], None]) -> None:
        self._results.put(result)
        os.write(self._write_fd, b"\0")


class _Compilations:
    """What the threads have in common: the helper and the vocabulary, which come with the first grammar."""

    def __init__(self, source: VocabularySource, log_level: str) -> None:
        self._source = source
        self._log_level = log_level
        self._lock = threading.Lock()  # for the two below
        self._helper: GrammarHelper | None = None
        self._vocabulary: llguidance.LLTokenizer | None = None

    def compile(self, grammar: Grammar, lane: Lane) -> CompileResult:
        try:
            return self._build(grammar, lane)
        except PagewireError as exc:
            return CompileResult(grammar, None, exc)
        except ImportError as exc:
            error = EngineError(f"Grammars can't be followed here: {exc}. Install llguidance.")
            return CompileResult(grammar, None, error)
        # Nobody else is here to see it, and whoever waits for the grammar has to be told something.
        except Exception as exc:
            logger.exception("a grammar can't be compiled")
            return CompileResult(grammar, None, EngineError(f"The grammar can't be compiled: {exc}"))

    def end(self) -> None:
        """End the helper, whatever it is at."""
        if self._helper is not None:
            self._helper.end()

    def _build(self, grammar: Grammar, lane: Lane) -> CompileResult:
        from .compiling import compile_matcher  # the library costs memory, and time to load
        from .helper import TakesTooLong
        from .translate import refused

        helper, vocabulary = self._prepare()
        try:
            text = helper.prove(grammar, LIMITS_S[lane])
        except TakesTooLong:
            if lane is Lane.QUICK:
                return CompileResult(grammar, None)
            raise refused(f"compiling it takes more than {LIMITS_S[lane]:g} s.") from None
        build = functools.partial(compile_matcher, vocabulary, text)
        return CompileResult(grammar, CompiledGrammar(build, frozenset(vocabulary.eos_tokens)))

    def _prepare(self) -> tuple[GrammarHelper, llguidance.LLTokenizer]:
        from .helper import GrammarHelper
        from .vocabulary import load_vocabulary

        with self._lock:
            if self._helper is None:
                self._helper = GrammarHelper(self._source, log_level=self._log_level)
            self._helper.start()
            if self._vocabulary is None:  # while the helper reads its own
                self._vocabulary = load_vocabulary(self._source)
            return self._helper, self._vocabulary
