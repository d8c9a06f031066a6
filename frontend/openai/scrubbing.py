"""Takes out of a message what only the server's own people should read: addresses of sockets, paths, memory."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"\b(?:ipc|tcp|inproc|unix)://[^\s'\"<>()]*[^\s'\"<>().,;:]")
_HOST_AND_PORT = re.compile(r"(?<![\w.])(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9A-Fa-f:]+\])(?::\d+)?(?![\w.])")
_PATH = re.compile(r"(?<![\w/:.~])~?(?:/[\w.+@%-]+){2,}/?")
_MEMORY = re.compile(r"\b0x[0-9A-Fa-f]{4,}\b")


def scrub(text: str) -> str:
    """Return the text with addresses, paths of two or more parts and memory addresses replaced by what they are."""
    text = _ADDRESS.sub("[address]", text)
    text = _HOST_AND_PORT.sub("[address]", text)
    text = _PATH.sub("[path]", text)
    return _MEMORY.sub("[memory]", text)
