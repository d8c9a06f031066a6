"""The process that renders chat templates: `python -m pagewire.frontend.templates`, started by the frontend.

A template is a program: it may compute for ever or fill the memory, while compiling as well (Jinja folds constants).
So the kernel counts this process's time and memory, and whoever takes too much loses this process alone.
"""

from __future__ import annotations

import resource
import signal
import socket
import sys

from pagewire.ipc.errors import ProtocolError
from pagewire.ipc.logs import setup_logging
from pagewire.ipc.process import die_with_parent, read_bootstrap

from .job_runner import JobRunner
from .jobs import HEADER, Job, MessageDecoder
from .limits import CPU_LIMIT_S, MEMORY_LIMIT_BYTES


def main() -> int:
    """Read the bootstrap, answer jobs until the frontend closes its end, return the exit code."""
    try:
        bootstrap = read_bootstrap()
    except ProtocolError as exc:
        sys.stderr.write(f"{exc}\n")
        return 2
    die_with_parent(bootstrap)
    setup_logging(bootstrap.name, bootstrap.log_level, bootstrap.log_format)
    _limit_memory()
    jobs: MessageDecoder[Job] = MessageDecoder(Job)
    runner = JobRunner()
    with socket.socket(fileno=int(bootstrap.address.removeprefix("fd:"))) as pair, pair.makefile("rb") as incoming:
        while len(header := incoming.read(HEADER.size)) == HEADER.size:
            job = jobs.decode(incoming.read(jobs.length(header)))
            # What the kernel ends needs no help of a loop that never returns to the interpreter.
            signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
            reply = runner.answer(job)
            signal.setitimer(signal.ITIMER_PROF, 0)
            try:
                pair.sendall(reply)
            except ConnectionError:  # the frontend has closed its end meanwhile
                break
    return 0


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere it is not kept
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))


if __name__ == "__main__":
    sys.exit(main())
