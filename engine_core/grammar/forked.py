"""Answers from forked processes: what one of them takes, memory or time, is lost with it, and nothing is loaded again.

The helper forks although no other process of the engine does: it has a vocabulary in memory, which takes a second to
read, and nothing that a fork could break: no event loop, no ZeroMQ, no torch, no lock that another thread may hold.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable

from .jobs import Reply, receive_message, replies, send_message

MOST_WAIT = 4.0
OUT_OF_TIME = (signal.SIGPROF, signal.SIGALRM)

_PR_SET_PDEATHSIG = 1


def fork(work: Callable[[], None]) -> int:
    """Have another process do some work and end; return its id. It does not outlive this one."""
    parent_pid = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent_pid:
                os._exit(1)
        work()
        os._exit(0)
    finally:  # whatever happens, this is not the process that was forked
        os._exit(1)


def answer_in_fork(answer: Callable[[], Reply], limit_s: float) -> Reply | signal.Signals | None:
    """Have another process find an answer.

    Args:
        answer: what it does.
        limit_s: seconds of computing that it may take; on a busy machine they may last `MOST_WAIT` times as long.

    Returns:
        The answer; else the signal that ended the process, one of `OUT_OF_TIME` if it took too long; None if it ended
        otherwise.
    """
    ours, theirs = socket.socketpair()

    def work() -> None:
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        signal.setitimer(signal.ITIMER_REAL, MOST_WAIT * limit_s)
        send_message(theirs, answer())

    with ours:
        with theirs:
            pid = fork(work)
        try:
            message = receive_message(ours)
        except (EOFError, ConnectionError):
            message = b""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if message:
        return replies.decode(message)
    return signal.Signals(-code) if code < 0 else None
