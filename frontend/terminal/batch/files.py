"""The two files of a batch: which requests are to be sent, and where their answers go."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pagewire.ipc.errors import ConfigError, MachineError

from .config import STANDARD_STREAM, BatchConfig
from .lines import BadLine, BatchRequest, answered_id, read_request

_HINT = "--resume goes on with them, --overwrite begins anew"


def read_requests(path: str) -> Iterator[tuple[int, BatchRequest | BadLine]]:
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


def answered_before(config: BatchConfig) -> frozenset[str]:
    """Return whose answers the output file has, if the batch goes on with it; make room there for new ones.

    Lines without a lasting answer are dropped: a half one that a kill left, and those of requests that are sent again.

    Raises:
        ConfigError: the file has answers, and nothing was said about them.
        MachineError: it can't be written.
    """
    path = Path(config.output_file)
    try:
        if config.output_file == STANDARD_STREAM or not path.exists() or (path.is_file() and not path.stat().st_size):
            return frozenset()
        if config.overwrite or not path.is_file():  # a pipe or a device holds nothing
            return frozenset()
        if not config.resume:
            raise ConfigError(f"{path} has answers already: {_HINT}, or name another --output-file.")
        with path.open("rb") as file:
            kept = [(custom_id, line) for line in file if (custom_id := answered_id(line)) is not None]
        partial = path.with_name(f"{path.name}.partial")
        partial.write_bytes(b"".join(line for _, line in kept))
        partial.replace(path)
    except OSError as exc:
        raise MachineError(f"{path} can't be written: {exc.strerror}.") from exc
    return frozenset(custom_id for custom_id, _ in kept)


@contextmanager
def open_output(config: BatchConfig) -> Iterator[BinaryIO]:
    """Open the output, to write behind what is there with --resume, and from its beginning else.

    Raises:
        MachineError: it can't be written.
    """
    if config.output_file == STANDARD_STREAM:
        yield sys.stdout.buffer
        return
    try:
        file = Path(config.output_file).open("ab" if config.resume else "wb")  # noqa: SIM115 -- closed below
    except OSError as exc:
        raise MachineError(f"{config.output_file} can't be written: {exc.strerror}.") from exc
    with file:
        yield file


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == STANDARD_STREAM:
        yield sys.stdin.buffer
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115 -- closed below
    except OSError as exc:
        raise ConfigError(f"--input-file {path} can't be read: {exc.strerror}.") from exc
    with file:
        yield file
