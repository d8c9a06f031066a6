"""A path in front of all routes, for a server that a reverse proxy shows below one of its own: `--root-path /llm`."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from aiohttp.http_parser import RawRequestMessage


def serve_below(server: web.Server, root_path: str) -> None:
    """Have a server that takes no connections yet answer to its routes below `root_path` too.

    Proxies either pass the path on or cut it off, so both forms are answered. It is cut before anything else looks at
    the path: keys, admission and figures are the same for both.

    Args:
        server: of the application.
        root_path: begins with a slash and ends without one.
    """
    make_request = server.request_factory

    def make(message: RawRequestMessage, *connection: Any) -> web.BaseRequest:  # Any: handed through as they come
        return make_request(_cut(message, root_path), *connection)

    server.request_factory = make


def _cut(message: RawRequestMessage, root_path: str) -> RawRequestMessage:
    if message.path != root_path and not message.path.startswith((f"{root_path}/", f"{root_path}?")):
        return message
    path = message.path[len(root_path) :]
    if not path.startswith("/"):
        path = f"/{path}"
    query = message.url.raw_query_string
    url = message.url.with_path(path.partition("?")[0], encoded=True).with_query(query or None)
    return message._replace(path=path, url=url)
