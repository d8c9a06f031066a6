"""One large file on its way: what came before a break is kept, and asked for from there on; its digest is checked."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import http.client
import io
import os
import re
import ssl
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from pagewire.ipc.errors import MachineError

SHA256 = re.compile(r"[0-9a-f]{64}")  # the hub's ETag of a large file is its digest
PARTIAL_SUFFIX = ".partial"
_CHUNK_BYTES = 1 << 20
_TRIES = 5  # without a byte of progress; with the pauses between them, some seconds
_LONGEST_PAUSE_S = 16.0
_TIMEOUT_S = 60.0
_PAUSE_OF_BAR_S, _PAUSE_IN_LOG_S = 0.1, 10.0  # a log keeps each state of the bar
_TOO_MUCH = (408, 429)  # of the answers that refuse, those that say: later
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Stopped(Exception):
    """Whoever wanted the file wants it no more; what came stays for the next try."""


class _Untrusted(Exception):
    """The certificate is not to be checked with the system's authorities; the library brings some of its own."""


class RemoteFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to fetch.

    Attributes:
        name: in the repository.
        url: where its bytes are, redirections followed.
        headers: to send there, and to no other host.
        num_bytes: its size.
        sha256: its digest.
        path: where it belongs.
    """

    name: str
    url: str
    headers: dict[str, str]
    num_bytes: int
    sha256: str
    path: Path


class ResumedFile:
    """Fetches one file.

    Attributes:
        is_there: whether it has its name; False until then, and where another way has to be taken.

    Args:
        look_up: says where its bytes are, None if another way has to be taken. It is asked again where the answer is
            refused: addresses that hold a permission are good for an hour, and the file may take longer.
        stop: set by whoever wants it no more.
        first_pause_s: after a try that brought nothing; each further one is twice as long.
    """

    def __init__(
        self, look_up: Callable[[], RemoteFile | None], stop: threading.Event, first_pause_s: float = 1.0
    ) -> None:
        self._look_up = look_up
        self._stop = stop
        self._first_pause_s = first_pause_s
        self.is_there = False

    def fetch(self) -> None:
        """Fetch what is missing; the file gets its name when it is whole and right.

        Raises:
            OSError: the bytes can't be had.
            MachineError: they can't be stored, or have another digest.
            Stopped: as the class says.
        """
        file = self._look_up()
        if file is None:
            return
        partial = file.path.with_name(file.path.name + PARTIAL_SUFFIX)
        with _storing(file):
            file.path.parent.mkdir(parents=True, exist_ok=True)
            opened = _open_alone(partial)
        with opened:
            if file.path.exists():
                partial.unlink(missing_ok=True)
                self.is_there = True
                return
            try:
                self._fetch_rest(file, opened)
            except _Untrusted:
                if opened.tell() == 0:
                    partial.unlink(missing_ok=True)
                return  # the library fetches it
            if digest_of(partial) != file.sha256:
                opened.truncate(0)
                raise MachineError(
                    f"{file.name} came with another digest than {file.sha256}, and was dropped; fetch again"
                )
            with _storing(file):
                partial.replace(file.path)
            self.is_there = True

    def _fetch_rest(self, file: RemoteFile, opened: io.FileIO) -> None:
        if opened.tell() > file.num_bytes:
            _empty(opened)
        num_vain, is_new_address = 0, True
        with _progress_bar(file, opened.tell()) as bar:
            while (begin := opened.tell()) < file.num_bytes:
                fault = self._try(file, opened, bar)
                if opened.tell() > begin:
                    num_vain, is_new_address = 0, False
                    continue
                num_vain += 1
                if _is_refusal(fault):
                    if is_new_address:
                        raise fault
                    file, is_new_address = self._look_up() or file, True
                elif num_vain == _TRIES:
                    raise fault
                elif self._stop.wait(min(self._first_pause_s * 2 ** (num_vain - 1), _LONGEST_PAUSE_S)):
                    raise Stopped

    def _try(self, file: RemoteFile, opened: io.FileIO, bar: Any) -> OSError:  # Any: see _progress_bar
        """Append what one connection brings; return what ended it, which says nothing if it was the file's end."""
        try:
            self._copy(file, opened, bar)
        except (OSError, http.client.HTTPException) as exc:
            if isinstance(getattr(exc, "reason", None), ssl.SSLCertVerificationError):
                raise _Untrusted from exc
            if isinstance(exc, urllib.error.HTTPError):
                exc.close()  # it is also the answer, with its connection
            return exc if isinstance(exc, OSError) else OSError(f"{file.name}: {exc!r}")
        return OSError(f"{file.name}: {urlsplit(file.url).netloc} ends the connection before a byte came")

    def _copy(self, file: RemoteFile, opened: io.FileIO, bar: Any) -> None:  # Any: see _progress_bar
        request = urllib.request.Request(file.url, headers={"Range": f"bytes={opened.tell()}-"})  # noqa: S310 -- the hub's own address
        for name, value in file.headers.items():
            request.add_unredirected_header(name, value)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310 -- as above
            if response.status != http.HTTPStatus.PARTIAL_CONTENT:  # it knows no ranges, and sends all
                bar.update(-opened.tell())
                _empty(opened)
            while chunk := response.read1(min(_CHUNK_BYTES, file.num_bytes - opened.tell())):
                if self._stop.is_set():
                    raise Stopped
                with _storing(file):
                    _append(opened, chunk)
                bar.update(len(chunk))


def digest_of(path: Path) -> str:
    """Return a file's sha256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _progress_bar(file: RemoteFile, num_bytes: int) -> Iterator[Any]:  # Any: the library's bar has no types
    from huggingface_hub.utils.tqdm import tqdm

    make_bar: Any = tqdm  # Any: as above
    pause_s = _PAUSE_OF_BAR_S if sys.stderr.isatty() else _PAUSE_IN_LOG_S
    with make_bar(
        total=file.num_bytes, initial=num_bytes, unit="B", unit_scale=True, desc=file.name, mininterval=pause_s
    ) as bar:
        yield bar


@contextmanager
def _storing(file: RemoteFile) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise MachineError(
            f"{file.name} can't be stored in {file.path.parent}: {exc.strerror or exc}; once there is room, the next "
            "try goes on with what came"
        ) from exc


def _open_alone(partial: Path) -> io.FileIO:
    """Open a file to append to it, once no other process does.

    Where nothing can be locked, two may: the digest tells.
    """
    while True:
        opened = partial.open("ab", buffering=0)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
        except OSError as exc:
            if exc.errno not in _NO_LOCKS:
                opened.close()
                raise
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(partial.stat(), os.fstat(opened.fileno())):
                opened.seek(0, os.SEEK_END)  # whoever had it may have gone on with it
                return opened
        opened.close()  # while it was waited for, it was finished or removed


def _empty(opened: io.FileIO) -> None:
    opened.truncate(0)
    opened.seek(0)


def _append(opened: io.FileIO, chunk: bytes) -> None:
    """Write all of it: a full disk takes a part first."""
    left = memoryview(chunk)
    while left:
        left = left[opened.write(left) :]


def _is_refusal(fault: OSError) -> bool:
    return isinstance(fault, urllib.error.HTTPError) and fault.code < 500 and fault.code not in _TOO_MUCH
