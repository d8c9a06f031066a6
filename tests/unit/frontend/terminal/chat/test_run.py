"""The chat at a terminal (a real one, by a pty) and without one."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pagewire.frontend.terminal.chat.config import ChatConfig
from pagewire.frontend.terminal.chat.conversation import Conversation
from pagewire.frontend.terminal.chat.run import Chat
from pagewire.ipc.requests import AddRequest
from tests.support.http_server import Running, running_server
from tests.support.terminal import LIMIT_S, Terminal


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
async def test_ctrl_c_stops_the_answer_and_twice_at_the_prompt_ends_the_chat(tmp_path: Path):
    def use(url: str) -> None:
        terminal = Terminal(["chat", "--url", url, "--plain"], tmp_path)
        terminal.expect("/help shows the commands")
        terminal.at_prompt("hi\r")
        terminal.expect("word")
        os.kill(terminal.process.pid, signal.SIGINT)
        terminal.expect("stopped")
        terminal.expect("> ")
        terminal.interrupt_until("once more")
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


def test_a_terminal_that_cannot_be_drawn_over_shows_text_as_it_comes(tmp_path: Path):
    shown: list[str] = []

    class Server:
        url = "http://h"

        def model_names(self) -> list[str]:
            return ["m"]

        def stream(self, _path: str, _body: object, take: Callable[[Any], None]) -> None:
            for text in ("**a", " b**"):
                take({"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]})
                shown.append(console.file.getvalue())

    typed = iter(["hi"])

    def read() -> str:
        for line in typed:
            return line
        raise EOFError

    console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    config = ChatConfig(history_file=str(tmp_path / "history"))
    assert Chat(Server(), Conversation(model="m"), config, console, read).run() == 0
    assert [text.endswith(end) for text, end in zip(shown, ("**a", "**a b**"), strict=True)] == [True, True]
