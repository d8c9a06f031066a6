"""Compiles the engine's grammars beside its loop: a thread, a helper process, a descriptor that tells of results."""

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

from .gate import CompileResult
from .matcher import CompiledGrammar

if TYPE_CHECKING:
    import llguidance

    from pagewire.ipc.structured_outputs import Grammar

    from ..engine import Engine
    from .vocabulary_source import VocabularySource

logger = logging.getLogger(__name__)


class GrammarCompiler:
    """Takes an engine's orders and brings it the results.

    What isn't asked for costs nothing: thread, helper and vocabulary come with the first grammar. The helper proves
    that a grammar compiles within its limits; then the thread builds the matcher that the core uses, with the
    interpreter free for the loop.

    Args:
        source: the vocabulary.
        log_level: of the helper.
        poller: the loop's.
    """

    def __init__(self, source: VocabularySource, *, log_level: str, poller: zmq.Poller) -> None:
        self._source = source
        self._log_level = log_level
        self._orders: queue.SimpleQueue[Grammar | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[CompileResult] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_busy = False
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        poller.register(self._read_fd, zmq.POLLIN)

    def exchange(self, engine: Engine) -> None:
        """Bring the engine what is compiled, and take what it wants compiled next.

        One grammar at a time: those whose requests end before their turn are never compiled, so whoever floods an
        engine with slow ones and goes away holds up nobody.
        """
        if self._thread is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self._read_fd, 4096)
            with contextlib.suppress(queue.Empty):
                engine.finish_compilation(self._results.get_nowait())
                self._is_busy = False
        if not self._is_busy and (grammar := engine.take_grammar_order()) is not None:
            self._start()
            self._orders.put(grammar)
            self._is_busy = True

    def close(self) -> None:
        """End the helper; what was ordered is dropped."""
        if self._thread is not None:
            self._orders.put(None)

    def _start(self) -> None:
        if self._thread is None:
            # A daemon: the core's end does not wait for a grammar that compiles, and the helper ends with the core.
            self._thread = threading.Thread(target=self._work, name="grammars", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        try:
            from .helper import GrammarHelper  # the library costs memory, and time to load
        except ImportError as exc:
            missing = EngineError(f"Grammars can't be followed here: {exc}. Install llguidance.")
            while (grammar := self._orders.get()) is not None:
                self._tell(CompileResult(grammar, None, missing))
            return
        helper = GrammarHelper(self._source, log_level=self._log_level)
        work = _Compilations(self._source, helper.start, helper.prove)
        while (grammar := self._orders.get()) is not None:
            self._tell(work.compile(grammar))
        helper.end()

    def _tell(self, result: CompileResult) -> None:
        self._results.put(result)
        os.write(self._write_fd, b"\0")


class _Compilations:
    def __init__(self, source: VocabularySource, prepare: Callable[[], None], prove: Callable[[Grammar], str]) -> None:
        self._source = source
        self._prepare = prepare
        self._prove = prove
        self._vocabulary: llguidance.LLTokenizer | None = None

    def compile(self, grammar: Grammar) -> CompileResult:
        try:
            return CompileResult(grammar, self._build(grammar))
        except PagewireError as exc:
            return CompileResult(grammar, None, exc)
        # Nobody else is here to see it, and whoever waits for the grammar has to be told something.
        except Exception as exc:
            logger.exception("a grammar can't be compiled")
            return CompileResult(grammar, None, EngineError(f"The grammar can't be compiled: {exc}"))

    def _build(self, grammar: Grammar) -> CompiledGrammar:
        from .compiling import compile_matcher
        from .vocabulary import load_vocabulary

        self._prepare()
        if self._vocabulary is None:  # while the helper reads its own
            self._vocabulary = load_vocabulary(self._source)
        text = self._prove(grammar)
        build = functools.partial(compile_matcher, self._vocabulary, text)
        return CompiledGrammar(build, frozenset(self._vocabulary.eos_tokens))
