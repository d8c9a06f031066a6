"""A Hugging Face hub on localhost, as far as huggingface_hub needs one to list and download models.

Point HF_ENDPOINT at `FakeHub.endpoint`. It answers the model API (info and tree) and file downloads (HEAD and GET with
ETag, X-Repo-Commit and Range), guards gated and private repositories by token, and keeps a log of what was asked.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit

_INFO = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)(?:/revision/(?P<revision>[^/]+))?")
_TREE = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)")
_FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


@dataclass
class FakeRepo:
    """One model repository.

    `files` are the default branch's; `revisions` maps further branch or tag names to their own files. `gated`: anyone
    may see the listing, files need `token`. `private`: nothing is seen without it.
    """

    files: dict[str, bytes]
    revisions: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: bool = False
    private: bool = False
    token: str | None = None

    def resolve(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Return the commit and files of a branch, tag or commit; None if there is none of that name."""
        for name, files in {"main": self.files, **self.revisions}.items():
            commit = hashlib.sha1(
                repr(sorted((path, _etag(data)) for path, data in files.items())).encode()
            ).hexdigest()
            if revision in (name, commit):
                return commit, files
        return None


def repo_files(directory: Path) -> dict[str, bytes]:
    """Return the files of a local checkpoint directory, as a `FakeRepo` takes them."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


class FakeHub:
    """A context manager that serves `repos` while it is open. `requests` lists "METHOD path", in order."""

    def __init__(self, repos: dict[str, FakeRepo]) -> None:
        self.repos = repos
        self.requests: list[str] = []
        hub = self

        class Handler(_Handler):
            fake_hub = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="fake-hub", daemon=True)

    @property
    def endpoint(self) -> str:
        """The value for HF_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def downloaded(self) -> list[str]:
        """Return the names of the files that were fetched, sorted."""
        matches = (_FILE.fullmatch(request.removeprefix("GET ")) for request in self.requests)
        return sorted(match["path"] for match in matches if match)

    def __enter__(self) -> FakeHub:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    fake_hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        """Stay silent: `FakeHub.requests` is the log."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.fake_hub.requests.append(f"{self.command} {path}")
        for pattern, answer in ((_TREE, self._answer_tree), (_INFO, self._answer_info), (_FILE, self._answer_file)):
            match = pattern.fullmatch(path)
            if match:
                groups = match.groupdict()
                repo = self.fake_hub.repos.get(groups["repo"])
                if repo is None or (repo.private and not self._has_token(repo)):
                    self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
                    return
                found = repo.resolve(groups["revision"] or "main")
                if found is None:
                    self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
                    return
                answer(repo, groups, *found)
                return
        self._send(404, b"", {})

    def _has_token(self, repo: FakeRepo) -> bool:
        return repo.token is not None and self.headers.get("Authorization") == f"Bearer {repo.token}"

    def _answer_info(self, repo: FakeRepo, groups: dict[str, str], commit: str, files: dict[str, bytes]) -> None:
        info = {
            "id": groups["repo"],
            "sha": commit,
            "private": repo.private,
            "gated": "manual" if repo.gated else False,
            "siblings": [{"rfilename": path} for path in files],
        }
        self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _answer_tree(self, repo: FakeRepo, groups: dict[str, str], commit: str, files: dict[str, bytes]) -> None:
        tree = [{"type": "file", "path": path, "size": len(data), "oid": _etag(data)} for path, data in files.items()]
        self._send(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})

    def _answer_file(self, repo: FakeRepo, groups: dict[str, str], commit: str, files: dict[str, bytes]) -> None:
        if repo.gated and not self._has_token(repo):
            self._send(401 if "Authorization" not in self.headers else 403, b"", {"X-Error-Code": "GatedRepo"})
            return
        data = files.get(groups["path"])
        if data is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        is_large = groups["path"].endswith((".safetensors", ".gguf"))  # kept apart from git, under their digest
        etag = hashlib.sha256(data).hexdigest() if is_large else _etag(data)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        requested = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if requested is None:
            self._send(200, data, headers)
            return
        start, end = int(requested[1]), int(requested[2] or len(data) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        self._send(206, data[start : end + 1], headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
