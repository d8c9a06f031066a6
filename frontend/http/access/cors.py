"""Which web pages may use the server from a browser (CORS): none, unless their origins are named.

A browser asks first (a preflight: OPTIONS with Access-Control-Request-Method, without credentials), and hands an answer
to a page only if the answer allows the page's origin. Errors must allow it too, or the page can't read them.

Source: https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aiohttp import web

from pagewire.ipc.server_config import ServerConfig

_EXPOSED_HEADERS = "X-Request-Id, Retry-After, X-Should-Retry"
_MAX_AGE_S = 600  # how long a browser may remember a preflight; the most that Chromium takes is 7200


class CrossOrigin:
    """The origins that are let in, and what they may do.

    Args:
        config: its allowed_* fields.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._takes_all = "*" in config.allowed_origins
        self._origins = frozenset(origin.rstrip("/").lower() for origin in config.allowed_origins)
        self._methods = frozenset(method.upper() for method in config.allowed_methods)
        self._headers = ", ".join(config.allowed_headers)
        self._takes_all_headers = "*" in config.allowed_headers
        self._allows_credentials = config.allow_credentials

    def headers(self, origin: str | None) -> dict[str, str]:
        """Return the headers that an answer to a page of `origin` gets; None for what is no browser's."""
        if not self._origins:
            return {}
        # A cache must not hand an answer for one origin to another.
        headers = {} if self._takes_all else {"Vary": "Origin"}
        if origin is None or not (self._takes_all or origin.lower() in self._origins):
            return headers
        headers["Access-Control-Allow-Origin"] = "*" if self._takes_all else origin
        headers["Access-Control-Expose-Headers"] = _EXPOSED_HEADERS
        if self._allows_credentials:
            headers["Access-Control-Allow-Credentials"] = "true"
        return headers

    def preflight_headers(self, request: Mapping[str, str], methods: Collection[str]) -> dict[str, str]:
        """Return the headers of the answer to a preflight, besides those of `headers`.

        Args:
            request: the preflight's own headers.
            methods: what the path takes.
        """
        origin = request.get("Origin")
        if "Access-Control-Allow-Origin" not in self.headers(origin):
            return {}
        allowed = [method for method in sorted(methods) if "*" in self._methods or method in self._methods]
        # With credentials a browser takes "*" literally, and never for Authorization: what it asks for is repeated.
        asked = request.get("Access-Control-Request-Headers", "")
        return {
            "Access-Control-Allow-Methods": ", ".join(allowed),
            "Access-Control-Allow-Headers": asked if self._takes_all_headers else self._headers,
            "Access-Control-Max-Age": str(_MAX_AGE_S),
        }


def is_preflight(request: web.Request) -> bool:
    """Return whether a browser asks what a page may do."""
    return request.method == "OPTIONS" and {"Origin", "Access-Control-Request-Method"} <= request.headers.keys()
