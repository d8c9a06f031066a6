"""The process that renders chat templates, but for messages that make it misbehave."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from pagewire.frontend.templates.job_runner import JobRunner
from pagewire.frontend.templates.jobs import HEADER, Job, MessageDecoder, RenderChat
from pagewire.ipc.process import die_with_parent, read_bootstrap

EXITS = "exit"
EXITS_ONCE = "exit once, and leave this file: "
STOPS = "stop"
BABBLES = "babble"

_jobs: MessageDecoder[Job] = MessageDecoder(Job)


def main() -> int:
    bootstrap = read_bootstrap()
    die_with_parent(bootstrap)
    runner = JobRunner()
    with socket.socket(fileno=int(bootstrap.address.removeprefix("fd:"))) as pair, pair.makefile("rb") as incoming:
        while header := incoming.read(HEADER.size):
            job = _jobs.decode(incoming.read(_jobs.length(header)))
            order = job.messages[0]["content"] if isinstance(job, RenderChat) else ""
            path = order.removeprefix(EXITS_ONCE)
            if order == EXITS:
                os._exit(3)
            if path != order and not Path(path).exists():
                Path(path).touch()
                os._exit(4)
            if order == STOPS:
                os.kill(os.getpid(), signal.SIGSTOP)
            pair.sendall(HEADER.pack(5) + b"noise" if order == BABBLES else runner.answer(job))
    return 0


if __name__ == "__main__":
    sys.exit(main())
