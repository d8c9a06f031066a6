"""The helper process as the core's compile threads see it: each of them has a grammar proven at a time."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
from pathlib import Path

import msgspec

from pagewire.ipc.errors import EngineError, PagewireError
from pagewire.ipc.process import ChildProcess
from pagewire.ipc.structured_outputs import Grammar

from .forked import MOST_WAIT
from .jobs import LoadVocabulary, ProveGrammar, Refused, TookTooLong, receive_message, replies, send_message
from .translate import refused
from .vocabulary_source import VocabularySource

logger = logging.getLogger(__name__)

MODULE = "pagewire.engine_core.grammar"
# From the start of the process to its vocabulary, on a machine that is busy computing.
START_LIMIT_S = 60.0
# The process keeps to the limits of grammars by itself. So much longer it may take to say so: else it was stopped.
PATIENCE_S = 20.0
# From the end of a socket to that of the process.
_END_LIMIT_S = 1.0


class TakesTooLong(Exception):
    """A grammar was not proven within its time."""


class _Killed(Exception):
    """Somebody killed the process amid a grammar."""


class _Helper:
    """One process, and the socket on which it is told of jobs."""

    def __init__(self, source: VocabularySource, log_level: str, module: str) -> None:
        self.control, theirs = socket.socketpair()
        with theirs:
            try:
                self.process = ChildProcess(
                    module,
                    name="grammars",
                    address=f"fd:{theirs.fileno()}",
                    runtime_dir=Path("/"),  # it has no sockets
                    log_level=log_level,
                    pass_fds=(theirs.fileno(),),
                )
            except OSError as exc:
                self.control.close()
                raise EngineError(f"No process can be started to compile grammars: {exc.strerror}.") from exc
        self.is_loaded = False
        with contextlib.suppress(OSError):  # whoever waits for the answer learns of it
            send_message(self.control, LoadVocabulary(source))

    def load(self) -> None:
        """Wait until it has the vocabulary.

        Raises:
            InvalidRequest: it can't read it.
            EOFError, OSError: it does not answer.
        """
        self.control.settimeout(START_LIMIT_S)
        _text_of(receive_message(self.control))
        self.is_loaded = True

    def ask(self, grammar: Grammar, limit_s: float, patience_s: float) -> str:
        """Have a grammar proven; several threads may ask at a time. See `GrammarHelper.prove`."""
        ours, theirs = socket.socketpair()
        with ours:
            ours.settimeout(MOST_WAIT * limit_s + patience_s)
            with theirs:
                socket.send_fds(self.control, [b"\0"], [theirs.fileno()])
            send_message(ours, ProveGrammar(grammar, limit_s))
            return _text_of(receive_message(ours))

    def kill(self) -> None:
        """End it."""
        self.control.close()
        self.process.kill()


class GrammarHelper:
    """Proves grammars in a process that can be killed. Calls block: they are threads'.

    Args:
        source: the vocabulary.
        log_level: of the process.
        patience_s: how long an answer may take besides.
        module: the process's; tests give others.
    """

    def __init__(
        self, source: VocabularySource, *, log_level: str, patience_s: float = PATIENCE_S, module: str = MODULE
    ) -> None:
        self._source = source
        self._log_level = log_level
        self._patience_s = patience_s
        self._module = module
        self._lock = threading.RLock()  # for the two below
        self._helper: _Helper | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start the process unless it runs, and have it read the vocabulary; does not wait for that.

        Raises:
            EngineError: the system starts no process.
        """
        with self._lock:
            self._running()

    def prove(self, grammar: Grammar, limit_s: float) -> str:
        """Return a grammar in the library's language, once it has compiled.

        Args:
            grammar: to be translated and compiled.
            limit_s: seconds of computing that it may take.

        Raises:
            TakesTooLong: it takes more.
            InvalidRequest: it doesn't compile; or the process can't read the vocabulary.
            EngineError: the process can't be started, or ends though nothing was asked of it.
        """
        try:
            return self._prove(grammar, limit_s)
        except _Killed:
            if not self._is_closed:
                logger.warning("the process that compiles grammars was killed; the next one tries the same grammar")
        try:
            return self._prove(grammar, limit_s)
        except _Killed as exc:
            raise refused("compiling it takes more memory than a grammar may.") from exc

    def end(self) -> None:
        """Kill the process, if there is one, and start no other."""
        with self._lock:
            self._is_closed = True
            if self._helper is not None:
                self._drop(self._helper)

    def _prove(self, grammar: Grammar, limit_s: float) -> str:
        helper = self._loaded()
        try:
            return helper.ask(grammar, limit_s, self._patience_s)
        except TimeoutError as exc:
            self._drop(helper)
            raise TakesTooLong from exc
        except (EOFError, OSError) as exc:
            self._drop_after(helper, exc)
            logger.warning("the process that compiles grammars ended over one (%s)", exc)
            raise refused("compiling it takes more memory than a grammar may.") from exc

    def _running(self) -> _Helper:
        if self._is_closed:
            raise EngineError("The engine stops, and compiles no grammars any more.")
        if self._helper is not None and self._helper.process.exit_code is not None:
            self._drop(self._helper)
        if self._helper is None:
            self._helper = _Helper(self._source, self._log_level, self._module)
        return self._helper

    def _loaded(self) -> _Helper:
        with self._lock:
            helper = self._running()
            if not helper.is_loaded:
                try:
                    helper.load()
                except (EOFError, OSError) as exc:
                    self._drop_after(helper, exc)
                    text = f"The process that compiles grammars did not start: {exc or 'no answer'}."
                    raise EngineError(text) from exc
                except PagewireError:  # it has no vocabulary: the next grammar finds a process that tries it anew
                    self._drop(helper)
                    raise
            return helper

    def _drop_after(self, helper: _Helper, exc: Exception) -> None:
        """Let go of a process that answers no more.

        Raises:
            _Killed: its own limit ends it by other ways: the system did, or somebody, maybe for what others took.
        """
        was_killed = helper.process.wait(_END_LIMIT_S) == -signal.SIGKILL
        self._drop(helper)
        if was_killed:
            raise _Killed from exc

    def _drop(self, helper: _Helper) -> None:
        """End a process; another thread may have seen to it."""
        with self._lock:
            if self._helper is helper:
                self._helper = None
                helper.kill()


def _text_of(message: bytes) -> str:
    try:
        reply = replies.decode(message)
    except msgspec.DecodeError as exc:
        raise EOFError(f"an unreadable answer: {exc}") from exc
    match reply:
        case Refused():
            raise PagewireError.from_info(reply.error)
        case TookTooLong():
            raise TakesTooLong
        case _:
            return reply.text
