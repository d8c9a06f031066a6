"""The helper process as the core's compile thread sees it: one job at a time, each within its time."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
from pathlib import Path

import msgspec

from pagewire.ipc.errors import EngineError, PagewireError
from pagewire.ipc.process import ChildProcess
from pagewire.ipc.structured_outputs import Grammar

from .jobs import LoadVocabulary, ProveGrammar, Refused, receive_message, replies, send_message
from .translate import refused
from .vocabulary_source import VocabularySource

logger = logging.getLogger(__name__)

MODULE = "pagewire.engine_core.grammar"
# Compiling what people write takes milliseconds, schemas of hundreds of kilobytes a second.
COMPILE_LIMIT_S = 5.0
# From the start of the process to its vocabulary, on a machine that is busy computing.
START_LIMIT_S = 60.0
# From the end of its socket to that of the process.
_END_LIMIT_S = 1.0


class _Killed(Exception):
    """Somebody killed the process amid a grammar."""


class GrammarHelper:
    """Proves grammars in a process that can be killed. Calls block: they are a thread's.

    Args:
        source: the vocabulary.
        log_level: of the process.
        limit_s: for a grammar.
        module: the process's; tests give others.
    """

    def __init__(
        self, source: VocabularySource, *, log_level: str, limit_s: float = COMPILE_LIMIT_S, module: str = MODULE
    ) -> None:
        self._source = source
        self._log_level = log_level
        self._limit_s = limit_s
        self._module = module
        self._process: ChildProcess | None = None
        self._pair: socket.socket | None = None
        self._is_loaded = False

    def start(self) -> None:
        """Start the process unless it runs, and have it read the vocabulary; does not wait for that.

        Raises:
            EngineError: the system starts no process.
        """
        if self._process is not None and self._process.exit_code is not None:
            self.end()
        if self._process is not None:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = ChildProcess(
                    self._module,
                    name="grammars",
                    address=f"fd:{theirs.fileno()}",
                    runtime_dir=Path("/"),  # it has no sockets
                    log_level=self._log_level,
                    pass_fds=(theirs.fileno(),),
                )
            except OSError as exc:
                ours.close()
                raise EngineError(f"No process can be started to compile grammars: {exc.strerror}.") from exc
        self._pair, self._is_loaded = ours, False
        with contextlib.suppress(OSError):  # whoever waits for the answer learns of it
            send_message(ours, LoadVocabulary(self._source))

    def prove(self, grammar: Grammar) -> str:
        """Return a grammar in the library's language, once it has compiled.

        Raises:
            InvalidRequest: it doesn't compile, or not within its time; or the process can't read the vocabulary.
            EngineError: the process can't be started, or ends though nothing was asked of it.
        """
        try:
            return self._prove(grammar)
        except _Killed:
            logger.warning("the process that compiles grammars was killed; the next one tries the same grammar")
        try:
            return self._prove(grammar)
        except _Killed as exc:
            raise refused("compiling it takes more memory than a grammar may.") from exc

    def _prove(self, grammar: Grammar) -> str:
        self.start()
        assert self._pair is not None
        if not self._is_loaded:
            try:
                self._pair.settimeout(START_LIMIT_S)
                self._answer(self._pair)
            except (EOFError, OSError) as exc:
                self._end_after(exc)
                raise EngineError(f"The process that compiles grammars did not start: {exc or 'no answer'}.") from exc
            except PagewireError:  # it has no vocabulary: the next grammar finds a process that tries to read it anew
                self.end()
                raise
            self._is_loaded = True
        try:
            self._pair.settimeout(self._limit_s)
            send_message(self._pair, ProveGrammar(grammar))
            return self._answer(self._pair)
        except TimeoutError as exc:
            self.end()
            raise refused(f"compiling it takes more than {self._limit_s:g} s.") from exc
        except (EOFError, OSError) as exc:
            self._end_after(exc)
            logger.warning("the process that compiles grammars ended over one (%s)", exc)
            raise refused("compiling it takes more memory than a grammar may.") from exc

    def end(self) -> None:
        """Kill the process, if there is one."""
        if self._pair is not None:
            self._pair.close()
        if self._process is not None:
            self._process.kill()
        self._pair = self._process = None

    def _end_after(self, exc: Exception) -> None:
        """Let go of a process that answers no more.

        Raises:
            _Killed: its own limit ends it by other ways: the system did, or somebody, maybe for what others took.
        """
        was_killed = self._process is not None and self._process.wait(_END_LIMIT_S) == -signal.SIGKILL
        self.end()
        if was_killed:
            raise _Killed from exc

    def _answer(self, pair: socket.socket) -> str:
        try:
            reply = replies.decode(receive_message(pair))
        except msgspec.DecodeError as exc:
            raise EOFError(f"an unreadable answer: {exc}") from exc
        if isinstance(reply, Refused):
            raise PagewireError.from_info(reply.error)
        return reply.text
