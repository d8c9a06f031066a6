"""A `pagewire serve` for tools that disturb it: its log, its files, and every process that it started."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from tools.processes import Process, processes_below, processes_with

CORE = "pagewire.engine_core"
EXECUTOR = "pagewire.gpu_executor"

_READY = re.compile(r"ready: serving (\S+)")
_START_TIMEOUT_S = 120.0


class WatchedServer:
    """A running server, in a directory of temporary files of its own.

    Attributes:
        url: where it serves.
        pid: of the process that was started; all others are below it.
        log_path: what all its processes write to standard error.
        runtime_parent: the directory in which it makes its own for sockets.
    """

    def __init__(self, model: str, *flags: str) -> None:
        """Start it on a free port of this machine and wait until it is ready.

        Raises:
            RuntimeError: it did not start.
        """
        # Short, because a socket's path may have about a hundred bytes.
        self._directory = Path(tempfile.mkdtemp(prefix="pw-watched-"))
        self.runtime_parent = self._directory / "run"
        self.runtime_parent.mkdir()
        self.log_path = self._directory / "log"
        command = [sys.executable, "-m", "pagewire", "serve", model, "--host", "127.0.0.1", "--port", "0", *flags]
        with self.log_path.open("wb") as log:
            self._server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "TMPDIR": str(self.runtime_parent)},
            )
        self.pid = self._server.pid
        self.url = self._wait_until_ready()

    def _wait_until_ready(self) -> str:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while (found := _READY.search(self.log_path.read_text())) is None:
            if self._server.poll() is not None or time.monotonic() > deadline:
                self._server.kill()
                self._server.wait()
                log = self.log_path.read_text()
                shutil.rmtree(self._directory)
                raise RuntimeError(f"the server did not start:\n{log}")
            time.sleep(0.02)
        return found[1]

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process that was started; None while it runs."""
        return self._server.poll()

    def find(self, module: str) -> Process | None:
        """Return the process that runs a module and is neither dead nor stopped, if there is one."""
        candidates = [process for process in processes_below(self.pid) if process.module == module]
        running = [process for process in candidates if process.state not in "ZXT"]
        return running[-1] if running else None

    def strays(self) -> list[Process]:
        """Return what it has started, runs, and is not below it (any longer).

        They are known by the directory of temporary files in their environment, which they inherit.
        """
        below = {process.pid for process in processes_below(self.pid)}
        started = processes_with(f"TMPDIR={self.runtime_parent}")
        return [process for process in started if process.pid not in below and process.pid != self.pid]

    def stop(self, timeout_s: float = 60.0) -> int:
        """Ask it to end, as a terminal or an orchestrator does; return its exit code.

        Raises:
            RuntimeError: it did not end in time and was killed.
        """
        self._server.send_signal(signal.SIGTERM)
        try:
            return self._server.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
            raise RuntimeError(f"the server did not end within {timeout_s} s of SIGTERM") from None

    def files_left(self) -> list[Path]:
        """Return the sockets and other files that it made and left behind."""
        return sorted(self.runtime_parent.rglob("*"))

    def log_tail(self, num_lines: int = 40) -> str:
        """Return the end of the log."""
        return "\n".join(self.log_path.read_text().splitlines()[-num_lines:])

    def __enter__(self) -> WatchedServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server.poll() is None:
            self._server.kill()
            self._server.wait()
        if error is None:
            shutil.rmtree(self._directory)
