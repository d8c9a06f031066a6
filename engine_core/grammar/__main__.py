"""The process that tries grammars: `python -m pagewire.engine_core.grammar`, started by the core with the first one.

A grammar is a program of its author: compiling it may take for ever, or all memory. Here it takes this process alone.
"""

from __future__ import annotations

import resource
import socket
import sys

import llguidance

from pagewire.ipc.errors import PagewireError, ProtocolError
from pagewire.ipc.logs import setup_logging
from pagewire.ipc.process import die_with_parent, read_bootstrap

from .compiling import compile_matcher
from .jobs import Done, Job, LoadVocabulary, Refused, Reply, jobs, receive_message, send_message
from .translate import refused, to_llguidance
from .vocabulary import load_vocabulary

# Address space, which the interpreter and the vocabulary take a part of: 0.5 GiB with 150,000 tokens.
_MEMORY_LIMIT_BYTES = 2 * 2**30


class Prover:
    """Answers jobs, the vocabulary's first."""

    _vocabulary: llguidance.LLTokenizer

    def answer(self, job: Job) -> Reply:
        """Return the reply to a job; whatever is wrong with it is a refusal."""
        try:
            return self._do(job)
        except PagewireError as exc:
            return Refused(exc.to_info())
        except (MemoryError, RecursionError):
            return Refused(refused("compiling it takes more memory than a grammar may.").to_info())

    def _do(self, job: Job) -> Reply:
        if isinstance(job, LoadVocabulary):
            self._vocabulary = load_vocabulary(job.source)
            return Done()
        text = to_llguidance(job.grammar)
        compile_matcher(self._vocabulary, text)
        return Done(text)


def main() -> int:
    """Read the bootstrap, answer jobs until the core closes its end, return the exit code."""
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
    prover = Prover()
    with socket.socket(fileno=int(bootstrap.address.removeprefix("fd:"))) as pair:
        while True:
            try:
                job = jobs.decode(receive_message(pair))
                send_message(pair, prover.answer(job))
            except (EOFError, ConnectionError):
                return 0


if __name__ == "__main__":
    sys.exit(main())
