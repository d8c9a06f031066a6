from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from pagewire.frontend.terminal.connection import ServerConnection
from pagewire.frontend.terminal.top.config import TopConfig
from pagewire.frontend.terminal.top.run import Watch, run
from pagewire.ipc.errors import ConfigError
from tests.support.http_server import running_server


async def test_once_prints_one_frame_of_a_real_servers_metrics():
    console = Console(file=io.StringIO(), width=80)
    async with running_server("hello") as server:
        await server.complete()
        config = TopConfig(url=server.url, once=True, interval=0.1)
        assert await asyncio.to_thread(run, config, console) == 0
    text = console.file.getvalue()
    for part in ("fake at", "0 running, 0 waiting", "1 stop", "restarts of cores", "KV cache"):
        assert part in text


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


def test_an_interval_has_bounds():
    with pytest.raises(ConfigError, match=r"between 0\.1 and 3600"):
        TopConfig(interval=0)
