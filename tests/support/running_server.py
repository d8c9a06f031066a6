"""A real `pagewire serve` for end-to-end tests: its own processes, a free port, an ordered stop that is checked."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.children import descendants_of, is_alive, wait_until
from tools.processes import processes_below

START_TIMEOUT_S = 120.0  # a loaded machine; a failed start is noticed at once
READY = re.compile(r"ready: (?:serving|clients attach at) (\S+)")


class RunningServer:
    """A process of the command line that has said it is ready.

    Attributes:
        url: where it serves.
        pid: of the process that the user started.
        log: what it wrote to standard error so far.
    """

    def __init__(
        self,
        arguments: list[str],
        directory: Path,
        *,
        module: str = "pagewire",
        environment: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """Start `pagewire ARGUMENTS`, or another module's command line, with further environment variables.

        `prefix` is a command that runs the rest of its own line, as `env` and `unshare` do.
        """
        self._log_path = directory / "log"
        # Socket paths have a length limit, so the directory of sockets must not lie deep below pytest's own.
        self.runtime_parent = Path(tempfile.mkdtemp(prefix="pw-"))
        with self._log_path.open("w") as log:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", module, *arguments],
                stderr=log,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "TMPDIR": str(self.runtime_parent), **(environment or {})},
            )
        self.pid = self._process.pid
        wait_until(lambda: self._is_ready() or self._process.poll() is not None, START_TIMEOUT_S, "the start")
        found = READY.search(self.log)
        assert found, f"the server did not start (exit code {self._process.poll()}):\n{self.log}"
        self.url = found.group(1)

    def _is_ready(self) -> bool:
        return READY.search(self.log) is not None

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def get(self, path: str) -> Any:
        """GET a JSON document."""
        with urllib.request.urlopen(self.url + path, timeout=60) as response:
            return json.load(response)

    def post(self, path: str, body: Any) -> Any:
        """POST JSON; an HTTP error's document is returned with its status as ("status", document)."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.load(response)
        except urllib.error.HTTPError as exc:
            return exc.code, json.load(exc)

    def gauge(self, name: str, **labels: str) -> float:
        """The value of the first sample of a metric that has these labels among its own."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as response:
            text = response.read().decode()
        for found in re.finditer(rf"^{re.escape(name)}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE):
            if all(f'{label}="{value}"' in (found[1] or "") for label, value in labels.items()):
                return float(found[2])
        raise AssertionError(f"no metric {name} {labels}")

    def process_of(self, module: str) -> int:
        """The one process below it that runs a module."""
        (process,) = [process for process in processes_below(self.pid) if process.module == module]
        return process.pid

    def descendants(self) -> list[int]:
        """Every process below it."""
        return descendants_of(self.pid)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop it in order, check that nothing is left behind, return its exit code."""
        below = self.descendants()
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            code = self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise AssertionError(f"no end within 30 s of {number.name}:\n{self.log}") from None
        for pid in below:
            wait_until(lambda pid=pid: not is_alive(pid), 5, f"the end of process {pid}")
        left = list(self.runtime_parent.rglob("*.sock"))
        assert not left, f"sockets left behind: {left}"
        return code


@contextmanager
def running_server(directory: Path, *arguments: str) -> Iterator[RunningServer]:
    """`pagewire serve` on a free port of this machine."""
    server = RunningServer(["serve", "--host", "127.0.0.1", "--port", "0", *arguments], directory)
    try:
        yield server
    finally:
        assert server.stop() == 0 or server.exit_code != 0
