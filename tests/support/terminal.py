"""A program at a pseudoterminal, typed at and read from as a person does."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 60.0


class Terminal:
    """A program at a pseudoterminal; what it shows is awaited, never slept for."""

    def __init__(self, arguments: list[str], directory: Path) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30", "XDG_STATE_HOME": str(directory)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pagewire", *arguments],
            stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.shown = ""
        self._read_to = 0

    def expect(self, text: str) -> None:
        """Wait until the text is shown, behind what was awaited before."""
        end = time.monotonic() + LIMIT_S
        while text not in self.shown[self._read_to :]:
            assert time.monotonic() < end, f"{text!r} is not shown: {self.shown[self._read_to :]!r}"
            assert self._read(end - time.monotonic()), f"it ended before {text!r}: {self.shown!r}"
        self._read_to = self.shown.index(text, self._read_to) + len(text)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def at_prompt(self, text: str) -> None:
        """Press keys once the next prompt is there: only then does the terminal belong to readline.

        What was typed before is taken as text; a Ctrl-D among it is lost.
        """
        self.expect("> ")
        self.type(text)

    def interrupt_until(self, text: str) -> None:
        """Press Ctrl-C until the text is shown; see `interrupt_until_end`."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            os.kill(self.process.pid, signal.SIGINT)
            while text not in self.shown[self._read_to :] and self._read(5.0):
                pass
            if text in self.shown[self._read_to :]:
                return self.expect(text)
        raise AssertionError(f"Ctrl-C does not show {text!r}: {self.shown!r}")

    def interrupt_until_end(self) -> int:
        """Press Ctrl-C; press it again while the first goes unnoticed; return the exit code.

        Python's readline only notices a signal that comes while it waits for a key, not just before.
        """
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            os.kill(self.process.pid, signal.SIGINT)
            while select.select([self._master], [], [], 5.0)[0]:
                if not self._read(0.0):
                    return self.end()
        raise AssertionError(f"Ctrl-C does not end it: {self.shown!r}")

    def end(self) -> int:
        """Wait for its end; return its exit code."""
        while self._read(LIMIT_S):
            pass
        os.close(self._master)
        return self.process.wait(LIMIT_S)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            self.shown += os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # Linux's word for the end
            return False
        return True
