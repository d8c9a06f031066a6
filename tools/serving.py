"""A server for tools that measure or check one: started, waited for, stopped."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class Served(NamedTuple):
    """A running server."""

    url: str
    pid: int


@contextmanager
def serving(model: str, *flags: str) -> Iterator[Served]:
    """Run `pagewire serve MODEL FLAGS` on a free port of this machine until the context ends.

    Raises:
        RuntimeError: it did not start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "pagewire", "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen([*command, "--log-level", "warning", *flags])
    url = f"http://127.0.0.1:{port}"
    try:
        while not is_healthy(url):
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with exit code {process.returncode}")
            time.sleep(0.02)
        yield Served(url, process.pid)
    finally:
        process.terminate()
        process.wait()


def children_of(pid: int) -> list[int]:
    """The direct children of a process (Linux)."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(pid)
    ]


def is_healthy(url: str) -> bool:
    """Whether the server's /health says that it is."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except (OSError, urllib.error.URLError):
        return False
