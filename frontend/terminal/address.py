"""Where a server is, and what goes to and fro; apart from the connection, which the flags need not load."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from pagewire.ipc.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:8000"

JsonObject = dict[str, Any]  # Any: bodies of other programs


def checked_url(url: str) -> str:
    """Return a server's address without what is no part of it.

    Raises:
        ConfigError: it is no address of HTTP.
    """
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, half an IPv6 address
        is_whole = False
    if not url.lower().startswith(("http://", "https://")):
        raise ConfigError(f"--url {url} must start with http:// or https://.")
    if not is_whole:
        raise ConfigError(f"--url {url} must name a host, and a port between 1 and 65535 if one: http://host:8000.")
    # Many copy the address of an endpoint; and a proxy may have the server below a path of its own.
    return f"{url}/".partition("/v1/")[0].rstrip("/")
