from __future__ import annotations

import asyncio
import io
import os
import pty
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pagewire.frontend.terminal.connection import ServerConnection
from pagewire.frontend.terminal.top.config import TopConfig
from pagewire.frontend.terminal.top.run import Watch, keys_at_once, run
from pagewire.frontend.terminal.top.view import draw
from pagewire.ipc.errors import ConfigError
from tests.support.http_server import running_server
from tests.support.terminal import Terminal


async def test_once_prints_one_frame_of_a_real_servers_metrics():
    console = Console(file=io.StringIO(), width=80)
    async with running_server("hello") as server:
        await server.complete()
        config = TopConfig(url=server.url, once=True, interval=0.1)
        assert await asyncio.to_thread(run, config, console) == 0
    text = console.file.getvalue()
    for part in ("fake at", "0 running, 0 waiting", "1 stop", "restarts of cores", "KV cache"):
        assert part in text


async def test_a_terminal_that_cannot_be_drawn_over_gets_one_frame(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    console = Console(file=io.StringIO(), width=80, force_terminal=True, _environ={"TERM": "dumb"})
    async with running_server("hello") as server:
        assert await asyncio.to_thread(run, TopConfig(url=server.url, interval=0.1), console) == 0
    assert "KV cache" in console.file.getvalue()


async def test_a_server_that_is_gone_meanwhile_is_waited_for():
    def begin(url: str) -> tuple[ServerConnection, Watch]:
        connection = ServerConnection(url)
        return connection, Watch(connection)

    async with running_server("hello") as server:
        connection, watch = await asyncio.to_thread(begin, server.url)
        assert (await asyncio.to_thread(watch.look)).fault is None
    frame = await asyncio.to_thread(watch.look)
    assert frame.fault is not None
    assert "can't be reached" in frame.fault
    assert len(frame.history) == 1
    await asyncio.to_thread(connection.close)


def test_a_key_that_quits_is_found_among_others(monkeypatch: pytest.MonkeyPatch):
    master, slave = pty.openpty()
    with os.fdopen(slave, "r") as keyboard, os.fdopen(master, "wb", buffering=0) as fingers:
        monkeypatch.setattr(sys, "stdin", keyboard)
        with keys_at_once() as wait:
            fingers.write(b"\xff\x1b[A")  # no text, and an arrow
            assert not wait(0.01)
            fingers.write(b"\x1b[Bq")
            assert wait(60.0)


def test_what_a_server_says_is_shown_and_not_obeyed():
    class Connection:
        url = "http://h"

        def get_text(self, _path: str) -> str:
            name = "vllm:request_success_total"
            return f'# TYPE {name} counter\n{name}{{model_name="[b]\x1b]0;m",finished_reason="[/x]\x1b[2J"}} 3\n'

        def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
            coroutine.close()

    console = Console(file=io.StringIO(), width=80, markup=False, force_terminal=False)
    console.print(draw(Watch(Connection()).look()))
    text = console.file.getvalue()
    assert "[b]\ufffd]0;m at http://h" in text
    assert "3 [/x]\ufffd[2J" in text


@pytest.mark.slow
async def test_an_order_to_end_gives_the_terminal_back(tmp_path: Path):
    def use(url: str) -> None:
        terminal = Terminal(["top", "--url", url], tmp_path)
        terminal.expect("q quits")
        terminal.process.terminate()
        assert terminal.end() == 128 + signal.SIGTERM
        assert "\x1b[?1049l" in terminal.shown  # the screen from before

    async with running_server("hello") as server:
        await asyncio.to_thread(use, server.url)


def test_an_interval_has_bounds():
    with pytest.raises(ConfigError, match=r"between 0\.1 and 3600"):
        TopConfig(interval=0)
