"""The chat at a terminal (a real one, by a pty) and without one."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pagewire.ipc.requests import AddRequest
from tests.support.http_server import Running, running_server

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


def requests(server: Running) -> list[AddRequest]:
    return [each for each in server.core.received if isinstance(each, AddRequest)]


@pytest.mark.slow
async def test_a_person_chats_stops_an_answer_and_leaves(tmp_path: Path):
    def use(url: str) -> None:
        terminal = Terminal(["chat", "--url", url], tmp_path)
        terminal.expect("/help shows the commands")
        terminal.at_prompt("hi\r")
        terminal.expect("hello")
        terminal.expect("first after")
        terminal.at_prompt("/hlep\r")
        terminal.expect("did you mean /help?")
        terminal.at_prompt("/set temperature 0\r")
        terminal.expect("temperature: 0")
        terminal.at_prompt("/retry\r")
        terminal.expect("first after")
        terminal.at_prompt("\x04")
        assert terminal.end() == 0

    async with running_server("hello") as server:
        await asyncio.to_thread(use, server.url)
        assert len(requests(server)) == 2
    assert (tmp_path / "pagewire" / "chat_history").read_text().count("\n") >= 3


@pytest.mark.slow
async def test_ctrl_c_stops_the_answer_and_a_second_one_ends_the_chat(tmp_path: Path):
    def use(url: str) -> None:
        terminal = Terminal(["chat", "--url", url, "--plain"], tmp_path)
        terminal.expect("/help shows the commands")
        terminal.at_prompt("hi\r")
        terminal.expect("word")
        os.kill(terminal.process.pid, signal.SIGINT)
        terminal.expect("stopped")
        terminal.expect("> ")
        assert terminal.interrupt_until_end() == 0

    async with running_server("word word word", num_steps=8) as server:
        await asyncio.to_thread(use, server.url)


@pytest.mark.slow
async def test_without_a_terminal_it_is_one_plain_answer():
    def use(url: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pagewire", "chat", "--url", url, "--quick", "Summarize:"]
        return subprocess.run(command, input="a text", capture_output=True, text=True, check=False, timeout=LIMIT_S)

    async with running_server("**hello**") as server:
        result = await asyncio.to_thread(use, server.url)
        assert (result.returncode, result.stdout, result.stderr) == (0, "**hello**\n", "")
        prompt = bytes(token for token in requests(server)[0].inputs.prompt_token_ids if token < 256).decode()
        assert "Summarize:\n\na text" in prompt
