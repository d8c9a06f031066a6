"""The process that tries grammars: `python -m pagewire.engine_core.grammar`, started by the core with the first one.

A grammar is a program of its author: compiling it may take for ever, or all memory. Here it takes a process alone that
was forked for it.
"""

from __future__ import annotations

import functools
import logging
import os
import resource
import signal
import socket
import sys

import llguidance

from pagewire.ipc.errors import PagewireError, ProtocolError
from pagewire.ipc.logs import setup_logging
from pagewire.ipc.process import die_with_parent, read_bootstrap

from .compiling import compile_matcher
from .forked import OUT_OF_TIME, answer_in_fork, fork
from .jobs import Done, LoadVocabulary, ProveGrammar, Refused, Reply, TookTooLong, jobs, receive_message, send_message
from .translate import refused, to_llguidance
from .vocabulary import load_vocabulary

logger = logging.getLogger(__name__)

# Address space, which the interpreter and the vocabulary take a part of: 0.5 GiB with 150,000 tokens.
_MEMORY_LIMIT_BYTES = 2 * 2**30
# Somebody may have killed the process for what others took: it is tried once more.
_MAX_TRIES = 2


def main() -> int:
    """Read the bootstrap and the vocabulary, answer jobs until the core closes its end, return the exit code."""
    try:
        bootstrap = read_bootstrap()
    except ProtocolError as exc:
        sys.stderr.write(f"{exc}\n")
        return 2
    die_with_parent(bootstrap)
    setup_logging(bootstrap.name, bootstrap.log_level, bootstrap.log_format)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere it is not kept
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT_BYTES, _MEMORY_LIMIT_BYTES))
    with socket.socket(fileno=int(bootstrap.address.removeprefix("fd:"))) as control:
        try:
            vocabulary = _load(control)
            return 1 if vocabulary is None else _serve(control, vocabulary)
        except (EOFError, ConnectionError):
            return 0


def _load(control: socket.socket) -> llguidance.LLTokenizer | None:
    job = jobs.decode(receive_message(control))
    assert isinstance(job, LoadVocabulary), "it is the first job"
    try:
        vocabulary = load_vocabulary(job.source)
    except PagewireError as exc:
        send_message(control, Refused(exc.to_info()))
        return None
    send_message(control, Done())
    return vocabulary


def _serve(control: socket.socket, vocabulary: llguidance.LLTokenizer) -> int:
    """Have each job, of which the core sends one end of a socket, done by a process of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return 0
        for fd in fds:
            fork(functools.partial(_do_job, control, fd, vocabulary))
            os.close(fd)


def _do_job(control: socket.socket, fd: int, vocabulary: llguidance.LLTokenizer) -> None:
    control.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=fd) as pair:
        job = jobs.decode(receive_message(pair))
        assert isinstance(job, ProveGrammar), "all but the first"
        send_message(pair, _prove_in_fork(vocabulary, job))


def _prove_in_fork(vocabulary: llguidance.LLTokenizer, job: ProveGrammar) -> Reply:
    for _ in range(_MAX_TRIES):
        match answer_in_fork(functools.partial(_prove, vocabulary, job), job.limit_s):
            case signal.Signals() as end if end in OUT_OF_TIME:
                return TookTooLong()
            case signal.SIGKILL:
                logger.warning("the process that compiles a grammar was killed")
            case Done() | Refused() as reply:
                return reply
            case end:
                logger.warning("the process that compiles a grammar ended over it (%s)", end)
                break
    return _too_large()


def _prove(vocabulary: llguidance.LLTokenizer, job: ProveGrammar) -> Reply:
    """Return the reply to a job; whatever is wrong with it is a refusal."""
    try:
        text = to_llguidance(job.grammar)
        compile_matcher(vocabulary, text)
    except PagewireError as exc:
        return Refused(exc.to_info())
    except (MemoryError, RecursionError):
        return _too_large()
    return Done(text)


def _too_large() -> Refused:
    return Refused(refused("compiling it takes more memory than a grammar may.").to_info())


if __name__ == "__main__":
    sys.exit(main())
