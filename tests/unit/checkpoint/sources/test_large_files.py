"""A file of weights arrives whole and right, or not at all; what came before a break is not fetched again."""

from __future__ import annotations

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

from pagewire.checkpoint.sources import large_files
from pagewire.checkpoint.sources.large_files import PARTIAL_SUFFIX, digest_of
from pagewire.ipc.errors import MachineError

CONTENT = bytes(range(256)) * 40


class BreakingServer(ThreadingHTTPServer):
    """Serves `CONTENT` by ranges, but breaks each of the first connections off after so many bytes."""

    def __init__(self, breaks: list[int], *, knows_ranges: bool = True, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.breaks = breaks
        self.knows_ranges = knows_ranges
        self.status = status
        self.ranges: list[int] = []


class _Handler(BaseHTTPRequestHandler):
    server: BreakingServer

    def do_GET(self) -> None:
        begin = int(re.fullmatch(r"bytes=(\d+)-", self.headers["Range"])[1])
        self.server.ranges.append(begin)
        if self.server.status != 200:
            self.send_error(self.server.status)
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
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def wanted(server: BreakingServer, folder: Path, sha256: str | None = None) -> large_files._File:
    sha256 = sha256 or hashlib.sha256(CONTENT).hexdigest()
    return large_files._File(
        name="model.safetensors", url=f"http://127.0.0.1:{server.server_address[1]}/x", headers={},
        num_bytes=len(CONTENT), sha256=sha256, path=folder / "blobs" / sha256,
    )  # fmt: skip


def test_a_broken_download_goes_on_where_it_broke(serve, tmp_path: Path):
    server = serve([1000, 500])
    file = wanted(server, tmp_path)
    large_files._fetch(file)
    assert server.ranges == [0, 1000, 1500]
    assert digest_of(file.path) == file.sha256
    assert [path.name for path in file.path.parent.iterdir()] == [file.sha256]


def test_what_an_earlier_process_left_is_not_fetched_again(serve, tmp_path: Path):
    server = serve([])
    file = wanted(server, tmp_path)
    file.path.parent.mkdir()
    file.path.with_name(file.path.name + PARTIAL_SUFFIX).write_bytes(CONTENT[:4000])
    large_files._fetch(file)
    assert server.ranges == [4000]
    assert file.path.read_bytes() == CONTENT
    large_files._fetch(file)
    assert server.ranges == [4000]


def test_a_server_without_ranges_begins_anew(serve, tmp_path: Path):
    file = wanted(serve([1000], knows_ranges=False), tmp_path)
    large_files._fetch(file)
    assert file.path.read_bytes() == CONTENT


def test_another_digest_is_refused_and_nothing_kept(serve, tmp_path: Path):
    file = wanted(serve([]), tmp_path, sha256="0" * 64)
    with pytest.raises(MachineError, match="another digest"):
        large_files._fetch(file)
    assert list(file.path.parent.iterdir()) == []


def test_a_refusal_is_not_asked_for_again_and_a_fault_is(serve, tmp_path: Path):
    refusing, faulty = serve([], status=403), serve([], status=503)
    for server, num_tries in ((refusing, 1), (faulty, 5)):
        with pytest.raises(OSError, match="HTTP Error"):
            large_files._fetch(wanted(server, tmp_path))
        assert len(server.ranges) == num_tries


def test_where_the_system_knows_no_authorities_the_library_fetches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise urllib.error.URLError(ssl.SSLCertVerificationError("unable to get local issuer certificate"))

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    path = tmp_path / "blobs" / ("0" * 64)
    large_files._fetch(large_files._File(name="x", url="https://h", headers={}, num_bytes=1, sha256="0", path=path))
    assert list(path.parent.iterdir()) == []
