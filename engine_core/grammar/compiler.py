"""Compiles the engine's grammars beside its loop: threads, a helper process, a descriptor that tells of results."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
from collections.abc import Callable
from typing import TYPE_CHECKING

import zmq

from pagewire.ipc.errors import EngineError, PagewireError

from .compiled import CompiledGrammar
from .gate import CompileResult
from .worker import Worker

if TYPE_CHECKING:
    import llguidance

    from pagewire.ipc.structured_outputs import Grammar

    from .compiled import TokenMatcher
    from .grammars import Grammars
    from .helper import GrammarHelper
    from .vocabulary_source import VocabularySource

logger = logging.getLogger(__name__)


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
        self._is_busy = False
        self._compilations = _Compilations(source, log_level)
        self._new = Worker("grammars", self._compile, self._compilations.end)
        self._next = Worker("automata", self._make_successor)
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        poller.register(self._read_fd, zmq.POLLIN)

    def exchange(self, grammars: Grammars) -> None:
        """Bring the engine what is compiled, and take what it wants compiled next.

        One new grammar at a time: those whose requests end before their turn are never compiled, so whoever floods an
        engine with slow ones and goes away holds up nobody.
        """
        if self._new.is_started or self._next.is_started:
            with contextlib.suppress(BlockingIOError):
                os.read(self._read_fd, 4096)
            with contextlib.suppress(queue.Empty):
                while True:
                    self._results.get_nowait()(grammars)
        if not self._is_busy and (grammar := grammars.take_order()) is not None:
            self._is_busy = True
            self._new.order(grammar)
        for compiled in grammars.take_successor_orders():
            self._next.order(compiled)

    def close(self) -> None:
        """End the helper; what was ordered is dropped."""
        self._new.end()
        self._next.end()

    def _compile(self, grammar: Grammar) -> None:
        result = self._compilations.compile(grammar)

        def bring(grammars: Grammars) -> None:
            self._is_busy = False
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
        self._helper: GrammarHelper | None = None
        self._vocabulary: llguidance.LLTokenizer | None = None

    def compile(self, grammar: Grammar) -> CompileResult:
        try:
            return CompileResult(grammar, self._build(grammar))
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
        """End the helper."""
        if self._helper is not None:
            self._helper.end()

    def _build(self, grammar: Grammar) -> CompiledGrammar:
        from .compiling import compile_matcher
        from .helper import GrammarHelper  # the library costs memory, and time to load
        from .vocabulary import load_vocabulary

        if self._helper is None:
            self._helper = GrammarHelper(self._source, log_level=self._log_level)
        self._helper.start()
        if self._vocabulary is None:  # while the helper reads its own
            self._vocabulary = load_vocabulary(self._source)
        text = self._helper.prove(grammar)
        build = functools.partial(compile_matcher, self._vocabulary, text)
        return CompiledGrammar(build, frozenset(self._vocabulary.eos_tokens))
