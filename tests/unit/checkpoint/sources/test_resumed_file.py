"""A file of weights arrives whole and right, or not at all; what came before a break is not fetched again."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import re
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pagewire.checkpoint.sources import resumed_file
from pagewire.checkpoint.sources.resumed_file import PARTIAL_SUFFIX, RemoteFile, ResumedFile, Stopped, digest_of
from pagewire.ipc.errors import MachineError

CONTENT = bytes(range(256)) * 40


class BreakingServer(ThreadingHTTPServer):
    """Serves `CONTENT` by ranges, but breaks each of the first connections off after so many bytes.

    `statuses` are those of the first answers, where they are others than that; `elsewhere` is where it sends everybody.
    """

    def __init__(
        self, breaks: list[int], *, knows_ranges: bool = True, statuses: list[int] | None = None, elsewhere: str = ""
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.breaks = breaks
        self.knows_ranges = knows_ranges
        self.statuses = statuses or []
        self.elsewhere = elsewhere
        self.ranges: list[int] = []
        self.credentials: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/x"


class _Handler(BaseHTTPRequestHandler):
    server: BreakingServer

    def do_GET(self) -> None:
        begin = int(re.fullmatch(r"bytes=(\d+)-", self.headers["Range"])[1])
        self.server.ranges.append(begin)
        self.server.credentials.append(self.headers["Authorization"])
        status = self.server.statuses.pop(0) if self.server.statuses else 0
        if status:
            self.send_error(status)
            return
        if self.server.elsewhere:
            self.send_response(302)
            self.send_header("Location", self.server.elsewhere)
            self.end_headers()
            return
        begin = begin if self.server.knows_ranges else 0
        self.send_response(206 if self.server.knows_ranges else 200)
        self.send_header("Content-Length", str(len(CONTENT) - begin))
        self.end_headers()
        limit = self.server.breaks.pop(0) if self.server.breaks else len(CONTENT)
        self.wfile.write(CONTENT[begin : begin + limit])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        """Stay silent."""


@pytest.fixture
def serve() -> Iterator[object]:
    servers: list[BreakingServer] = []

    def start(breaks: list[int], **options: object) -> BreakingServer:
        server = BreakingServer(breaks, **options)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def wanted(server: BreakingServer, folder: Path, sha256: str | None = None, **headers: str) -> RemoteFile:
    sha256 = sha256 or hashlib.sha256(CONTENT).hexdigest()
    return RemoteFile(
        name="model.safetensors", url=server.url, headers=headers, num_bytes=len(CONTENT), sha256=sha256,
        path=folder / "blobs" / sha256,
    )  # fmt: skip


def fetch(*files: RemoteFile) -> None:
    """Fetch a file that is looked up as the first of these, then as the second, ..."""
    answers = list(files)
    ResumedFile(lambda: answers.pop(0), threading.Event(), first_pause_s=0.0).fetch()


def leave_partial(file: RemoteFile, data: bytes) -> Path:
    file.path.parent.mkdir()
    partial = file.path.with_name(file.path.name + PARTIAL_SUFFIX)
    partial.write_bytes(data)
    return partial


def test_a_broken_download_goes_on_where_it_broke(serve, tmp_path: Path):
    server = serve([1000, 500])
    file = wanted(server, tmp_path)
    fetch(file)
    assert server.ranges == [0, 1000, 1500]
    assert digest_of(file.path) == file.sha256
    assert [path.name for path in file.path.parent.iterdir()] == [file.sha256]


def test_what_an_earlier_process_left_is_not_fetched_again(serve, tmp_path: Path):
    server = serve([])
    file = wanted(server, tmp_path)
    leave_partial(file, CONTENT[:4000])
    fetch(file)
    assert server.ranges == [4000]
    assert file.path.read_bytes() == CONTENT
    fetch(file)
    assert server.ranges == [4000]


def test_what_is_longer_than_the_file_is_none_of_it(serve, tmp_path: Path):
    server = serve([])
    file = wanted(server, tmp_path)
    leave_partial(file, bytes(len(CONTENT) + 1))
    fetch(file)
    assert server.ranges == [0]
    assert file.path.read_bytes() == CONTENT


def test_a_server_without_ranges_begins_anew(serve, tmp_path: Path):
    file = wanted(serve([1000], knows_ranges=False), tmp_path)
    fetch(file)
    assert file.path.read_bytes() == CONTENT


def test_another_digest_is_refused_and_nothing_kept(serve, tmp_path: Path):
    file = wanted(serve([]), tmp_path, sha256="0" * 64)
    with pytest.raises(MachineError, match="another digest"):
        fetch(file)
    assert [path.stat().st_size for path in file.path.parent.iterdir()] == [0]


def test_a_refusal_is_not_asked_for_again_and_a_fault_is(serve, tmp_path: Path):
    for statuses, num_tries in (([403] * 9, 1), ([503] * 9, 5), ([429] * 9, 5)):
        server = serve([], statuses=statuses)
        with pytest.raises(OSError, match="HTTP Error"):
            fetch(wanted(server, tmp_path))
        assert len(server.ranges) == num_tries


def test_a_server_that_sends_nothing_is_given_up(serve, tmp_path: Path):
    server = serve([0] * 9)
    with pytest.raises(OSError, match="ends the connection before a byte came"):
        fetch(wanted(server, tmp_path))
    assert len(server.ranges) == 5


def test_an_address_that_has_become_invalid_is_looked_up_again(serve, tmp_path: Path):
    first, second = serve([1000], statuses=[0, 403]), serve([])
    file = wanted(second, tmp_path)
    fetch(wanted(first, tmp_path), file)
    assert (first.ranges, second.ranges) == ([0, 1000], [1000])
    assert file.path.read_bytes() == CONTENT


def test_the_credential_goes_to_no_other_host(serve, tmp_path: Path):
    store = serve([])
    hub = serve([], elsewhere=store.url)
    fetch(wanted(hub, tmp_path, Authorization="Bearer secret"))
    assert (hub.credentials, store.credentials) == (["Bearer secret"], [None])


def test_who_wants_the_file_no_more_leaves_what_came(serve, tmp_path: Path):
    stop = threading.Event()
    stop.set()
    server = serve([])
    with pytest.raises(Stopped):
        ResumedFile(lambda: wanted(server, tmp_path), stop).fetch()
    assert [path.suffix for path in (tmp_path / "blobs").iterdir()] == [PARTIAL_SUFFIX]


def test_a_full_disk_is_told_as_such_and_not_tried_again(serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(resumed_file, "_append", refuse)
    server = serve([])
    with pytest.raises(MachineError, match=r"can't be stored in .*blobs: No space left on device; once there is room"):
        fetch(wanted(server, tmp_path))
    assert server.ranges == [0]


def test_a_file_system_without_locks_does_not_keep_a_file_away(serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    file = wanted(serve([]), tmp_path)
    fetch(file)
    assert file.path.read_bytes() == CONTENT


def test_what_others_bring_while_it_is_waited_for_is_not_fetched_again(
    serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    server = serve([])
    file = wanted(server, tmp_path)
    partial = leave_partial(file, CONTENT[:1000])
    monkeypatch.setattr(fcntl, "flock", lambda *_: partial.write_bytes(CONTENT[:4000]))
    fetch(file)
    assert server.ranges == [4000]
    assert file.path.read_bytes() == CONTENT


def test_a_file_that_is_removed_while_it_is_waited_for_is_begun_anew(
    serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    server = serve([])
    file = wanted(server, tmp_path)
    partial = leave_partial(file, CONTENT[:4000])
    waits = iter([partial.unlink])  # what others do while it waits

    def wait(*_: object) -> None:
        next(waits, bool)()

    monkeypatch.setattr(fcntl, "flock", wait)
    fetch(file)
    assert server.ranges == [0]
    assert file.path.read_bytes() == CONTENT


def test_where_the_system_knows_no_authorities_the_library_fetches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise urllib.error.URLError(ssl.SSLCertVerificationError("unable to get local issuer certificate"))

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    path = tmp_path / "blobs" / ("0" * 64)
    fetch(RemoteFile(name="x", url="https://h", headers={}, num_bytes=1, sha256="0", path=path))
    assert list(path.parent.iterdir()) == []
