"""Several frontend processes: one that ends is replaced, one that keeps ending is the end, and all stop when told."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.frontend.http.listener import open_listeners
from pagewire.frontend.supervisor import frontends as frontends_module
from pagewire.frontend.supervisor.frontends import Frontends
from pagewire.ipc.config import EngineConfig, SupervisionConfig
from pagewire.ipc.errors import EngineDead, MachineError
from pagewire.ipc.server_config import ServerConfig
from tests.support.children import is_alive, make_importable
from tests.support.fake_core import FakeCore
from tests.support.fake_frontend_process import FAULT

DEADLINE_S = 60


@pytest.fixture(autouse=True)
def _fake_frontends(monkeypatch: pytest.MonkeyPatch) -> None:
    make_importable(monkeypatch)


@contextmanager
def built(count: int = 2, **supervision: int) -> Iterator[Frontends]:
    server_config = ServerConfig(host="127.0.0.1", port=0, api_server_count=count)
    config = EngineConfig(supervision=SupervisionConfig(**supervision))
    with open_listeners(server_config) as listeners:
        yield Frontends(config, server_config, "ipc:///x", listeners, module="tests.support.fake_frontend_process")


@asynccontextmanager
async def running(count: int = 2, **supervision: int) -> AsyncIterator[Frontends]:
    with built(count, **supervision) as frontends:
        async with asyncio.timeout(DEADLINE_S), frontends.running():
            yield frontends


def pids(frontends: Frontends) -> list[int]:
    return [child.process.pid for child in frontends._children.values()]


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what other processes bring about."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110 - they send this one no event
            await asyncio.sleep(0.01)


async def test_frontend_that_is_killed_is_replaced_and_the_other_goes_on():
    async with running() as frontends:
        await frontends.ready()
        victim, other = pids(frontends)
        os.kill(victim, signal.SIGKILL)
        await until(lambda: pids(frontends)[0] != victim)
        assert pids(frontends)[1] == other
    assert not any(map(is_alive, [victim, other, *pids(frontends)]))


async def test_frontend_that_can_not_start_is_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(FAULT, "fails_to_start")
    async with running() as frontends:
        with pytest.raises(MachineError, match=r"frontend \d ended with exit code 7 before it was ready"):
            await frontends.ready()


async def test_frontend_that_keeps_ending_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(FAULT, "ends_when_ready")
    async with (
        FakeCore() as core,
        await AsyncEngineClient.connect(core.address) as client,
        running(1, max_restarts=1) as frontends,
    ):
        with pytest.raises(MachineError, match=r"frontend 0 has ended 2 times in a row without serving for 10 s"):
            await frontends.watch(client)


async def test_watch_ends_with_the_engine():
    async with FakeCore() as core, await AsyncEngineClient.connect(core.address) as client:
        with built() as frontends:
            watching = asyncio.create_task(frontends.watch(client))
            client.mark_dead(EngineDead("it is over"))
            await asyncio.wait_for(watching, DEADLINE_S)


async def test_drain_waits_for_all_to_finish():
    async with running() as frontends:
        await frontends.ready()
        await frontends.drain(timeout_s=DEADLINE_S)
        await until(lambda: not any(map(is_alive, pids(frontends))))


@pytest.mark.parametrize("fault", ["never_finishes", "hangs"])
async def test_those_that_do_not_finish_are_stopped_or_killed(monkeypatch: pytest.MonkeyPatch, fault: str):
    monkeypatch.setenv(FAULT, fault)
    monkeypatch.setattr(frontends_module, "END_S", 0.2)
    async with running() as frontends:
        await frontends.ready()
        await frontends.drain(timeout_s=0.0)
        assert all(map(is_alive, pids(frontends)))
    assert not any(map(is_alive, pids(frontends)))
