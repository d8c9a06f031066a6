"""GET / and /ui/...: the web page. Its files hold no data, so that they need no API key; the page asks for one.

They are whole in themselves: no other host is asked for anything, and the policy that goes with them forbids it. What
a model writes can't run: scripts and styles come from these files alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from aiohttp import web

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # They may be kept, and are asked for each time: 304 while they are the same, new ones after an upgrade.
    "Cache-Control": "no-cache",
}
_INDEX = "index.html"


@dataclass(frozen=True)
class _File:
    content: bytes
    content_type: str
    etag: str


class Page:
    """The files of the page, read once."""

    def __init__(self) -> None:
        folder = resources.files("pagewire.frontend.web") / "static"
        self._files = {path.name: _read(path.name, path.read_bytes()) for path in folder.iterdir()}

    @property
    def names(self) -> list[str]:
        """The files that there are."""
        return sorted(self._files)

    async def index(self, request: web.Request) -> web.Response:
        """Return the page."""
        return _answer(request, self._files[_INDEX])

    async def file(self, request: web.Request) -> web.Response:
        """Return one of its files."""
        file = self._files.get(request.match_info["name"])
        if file is None:
            raise web.HTTPNotFound
        return _answer(request, file)


def _read(name: str, content: bytes) -> _File:
    suffix = name[name.rindex(".") :]
    return _File(content, _TYPES[suffix], hashlib.sha256(content).hexdigest()[:32])


def _answer(request: web.Request, file: _File) -> web.Response:
    headers = {**_HEADERS, "ETag": f'"{file.etag}"'}
    known = request.if_none_match
    if known is not None and any(etag.value in (file.etag, "*") for etag in known):
        return web.Response(status=304, headers=headers)
    return web.Response(body=file.content, headers={**headers, "Content-Type": file.content_type})
