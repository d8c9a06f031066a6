"""The two files of a batch: which requests are to be sent, and where their answers go."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pagewire.ipc.errors import ConfigError, MachineError

from .config import STANDARD_STREAM, BatchConfig
from .lines import BadLine, BatchRequest, answered_id, read_request

_HINT = "--resume goes on with them, --overwrite begins anew"
_LINES_AHEAD = 64

Numbered = tuple[int, BatchRequest | BadLine]


def count_requests(path: str) -> int | None:
    """Return how many lines a file has that are not empty; None of what can be read only once.

    Raises:
        ConfigError: the file can't be read.
    """
    if not _is_file(path):
        return None
    with _opened(path) as file:
        return sum(1 for line in file if line.strip())


def read_requests(path: str) -> Iterator[Numbered]:
    """Yield the number and the request of each line, empty ones left out; a `BadLine` where there is none.

    A custom_id that comes a second time is none: its answers could not be told apart.

    Raises:
        ConfigError: the file can't be read.
    """
    seen: set[str] = set()
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                request = read_request(line)
                if request.custom_id in seen:
                    raise BadLine(f"custom_id {request.custom_id} stands in an earlier line, too.", request.custom_id)
                seen.add(request.custom_id)
                yield number, request
            except BadLine as exc:
                yield number, exc


async def requests_as_they_come(path: str) -> AsyncIterator[Numbered]:
    """Yield what `read_requests` does, and keep nobody waiting while a pipe brings nothing.

    Raises:
        ConfigError: the file can't be read.
    """
    if _is_file(path):
        for each in read_requests(path):
            yield each
        return
    loop, arrived = asyncio.get_running_loop(), asyncio.Queue[Numbered | Exception | None]()
    room = threading.Semaphore(_LINES_AHEAD)

    def read() -> None:
        def hand_over(what: Numbered | Exception | None) -> None:
            room.acquire()
            loop.call_soon_threadsafe(arrived.put_nowait, what)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            try:
                for each in read_requests(path):
                    hand_over(each)
            except Exception as exc:  # raised again below
                hand_over(exc)
            hand_over(None)

    # A daemon: nothing but the other end's end would wake it.
    threading.Thread(target=read, name="requests", daemon=True).start()
    while (what := await arrived.get()) is not None:
        room.release()
        if isinstance(what, Exception):
            raise what
        yield what


def answered_before(config: BatchConfig) -> frozenset[str]:
    """Return whose answers the output file has, if the batch goes on with it; make room there for new ones.

    Lines without a lasting answer are dropped: a half one that a kill left, and those of requests that are sent again.

    Raises:
        ConfigError: the file has answers, and nothing was said about them; or it is the one with the requests.
        MachineError: it can't be written.
    """
    path = Path(config.output_file)
    try:
        if _is_file(config.input_file) and _is_file(config.output_file) and path.samefile(config.input_file):
            raise ConfigError(f"{path} holds the requests; name another --output-file.")
        if config.output_file == STANDARD_STREAM or not path.exists() or (path.is_file() and not path.stat().st_size):
            return frozenset()
        if config.overwrite or not path.is_file():  # a pipe or a device holds nothing
            return frozenset()
        if not config.resume:
            raise ConfigError(f"{path} has answers already: {_HINT}, or name another --output-file.")
        answered: set[str] = set()
        partial = path.with_name(f"{path.name}.partial")
        with path.open("rb") as file, partial.open("wb") as kept:
            for line in file:
                if (custom_id := answered_id(line)) is not None:
                    answered.add(custom_id)
                    kept.write(line.rstrip(b"\n") + b"\n")  # of the last one, a kill may have left all but the end
        partial.replace(path)
    except OSError as exc:
        raise MachineError(f"{path} can't be written: {exc.strerror}.") from exc
    return frozenset(answered)


@contextmanager
def open_output(config: BatchConfig) -> Iterator[BinaryIO]:
    """Open the output, to write behind what is there.

    Raises:
        MachineError: it can't be written, at first or while it is open.
        BrokenPipeError: whoever read the standard output has gone.
    """
    try:
        if config.output_file == STANDARD_STREAM:
            yield sys.stdout.buffer
        else:
            with Path(config.output_file).open("ab") as file:
                yield file
    except OSError as exc:
        if exc.errno == errno.EPIPE:
            raise
        name = "the standard output" if config.output_file == STANDARD_STREAM else config.output_file
        raise MachineError(f"{name} can't be written: {exc.strerror}.") from exc


def drop_answers(output: BinaryIO) -> None:
    """Empty a file that is open; the standard output and what is no file hold nothing that is ours."""
    if output is not sys.stdout.buffer and stat.S_ISREG(os.fstat(output.fileno()).st_mode):
        output.truncate(0)


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == STANDARD_STREAM:
        # Not sys.stdin: who waits in that keeps the interpreter from ending.
        with open(sys.stdin.fileno(), "rb", closefd=False) as file:
            yield file
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115 -- closed below
    except OSError as exc:
        raise ConfigError(f"--input-file {path} can't be read: {exc.strerror}.") from exc
    with file:
        yield file


def _is_file(path: str) -> bool:
    return path != STANDARD_STREAM and Path(path).is_file()
