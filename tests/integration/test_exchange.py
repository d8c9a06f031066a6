"""Real frontend processes over a scripted core: whichever is asked, the answer is that of all."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagewire.frontend.exchange.line import Line
from pagewire.frontend.http.listener import open_listeners
from pagewire.frontend.supervisor.frontends import MODULE, Frontends
from pagewire.ipc.config import EngineConfig, ModelOptions
from pagewire.ipc.logs import setup_logging
from pagewire.ipc.server_config import ServerConfig
from tests.support import patient_frontend_process
from tests.support.children import make_importable
from tests.support.fake_core import FakeCore, engine_info
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

DEADLINE_S = 120  # each process imports for a second of a machine that has time
PAUSE_S = 0.02


class Served:
    """Two frontends, and who of them is stopped by SIGSTOP."""

    def __init__(self, frontends: Frontends, uds: Path) -> None:
        self.frontends = frontends
        self.uds = uds

    def pid(self, index: int) -> int:
        return self.frontends._children[index].process.pid

    @contextmanager
    def stopped(self, index: int) -> Iterator[None]:
        """Have one frontend stand still: the other takes every connection of the socket that they share."""
        os.kill(self.pid(index), signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid(index), signal.SIGCONT)

    async def ask(self, method: str, path: str, **body: Any) -> tuple[int, Any]:
        """Ask on a connection of its own, so that any frontend may take it."""
        async with (
            aiohttp.ClientSession("http://x", connector=aiohttp.UnixConnector(str(self.uds))) as session,
            session.request(method, path, json=body or None) as response,
        ):
            is_json = response.content_type == "application/json"
            return response.status, await (response.json() if is_json else response.text())

    async def settled(self, method: str, path: str, **body: Any) -> tuple[int, Any]:
        """Ask again for as long as the other frontend is said to be silent: on a busy machine it may be slow."""
        answers: list[tuple[int, Any]] = []

        async def is_given() -> bool:
            answers.append(await self.ask(method, path, **body))
            return answers[-1][0] != 503

        await until(is_given)
        return answers[-1]

    async def shows(self, *series: str) -> bool:
        """Return whether a scrape has all of these."""
        _, text = await self.ask("GET", "/metrics")
        return all(f"\n{each} " in text for each in series)

    async def sample(self, name: str, **labels: str) -> float:
        """Return the sum of a sample's series with these labels."""
        _, text = await self.ask("GET", "/metrics")
        families = text_string_to_metric_families(text)
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


@pytest.fixture(autouse=True)
def _json_logs() -> Iterator[None]:
    logger, root = logging.getLogger("pagewire"), logging.getLogger()
    before = logger.handlers[:], logger.level, logger.propagate, root.handlers[:]
    setup_logging("launcher", "info", "json")
    yield
    logging.captureWarnings(False)
    logger.handlers[:], logger.propagate, root.handlers[:] = before[0], before[2], before[3]
    logger.setLevel(before[1])


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    while not await holds():  # noqa: ASYNC110 - other processes have no event for it
        await asyncio.sleep(PAUSE_S)


@asynccontextmanager
async def served(tmp_path: Path, module: str = MODULE) -> AsyncIterator[Served]:
    info = engine_info(vocab_size=300, eos_token_ids=(2,), max_model_len=2048)
    server_config = ServerConfig(uds=str(tmp_path / "http"), api_server_count=2)
    engine_config = EngineConfig(model=ModelOptions(model_path=str(tiny_checkpoint())))
    async with FakeCore(answer=lambda request: [[65, 66, 67, 2]] * request.task.n, info=info) as core:
        with open_listeners(server_config) as listeners:
            frontends = Frontends(engine_config, server_config, core.address, listeners, module=module)
            async with asyncio.timeout(DEADLINE_S), frontends.running():
                await frontends.ready()
                yield Served(frontends, tmp_path / "http")


async def test_any_frontend_answers_for_all_and_the_dead_still_count(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    async with served(tmp_path) as server:
        with server.stopped(1):
            for _ in range(2):
                assert (await server.ask("POST", "/v1/completions", prompt="a", max_tokens=4))[0] == 200
            status, made = await server.ask("POST", "/v1/responses", input="hi")
            assert status == 200, made
        path = f"/v1/responses/{made['id']}"
        with server.stopped(0):
            assert (await server.ask("POST", "/v1/completions", prompt="a", max_tokens=4))[0] == 200
            # The one that has it is silent, which is said.
            assert await server.sample("pagewire_frontends", state="silent") == 1
            assert (await server.ask("GET", path))[0] == 503
            assert (await server.ask("GET", "/load"))[1] == {"server_load": 0, "num_frontends_missing": 1}

        async def both_answer() -> bool:
            return await server.sample("pagewire_frontends", state="answering") == 2

        async def all_are_counted() -> bool:
            return await server.sample("vllm:request_success_total") == 5

        await until(both_answer)
        for _ in range(4):  # from here on a slow one counts as it last did
            assert await server.sample("vllm:request_success_total") == 4
            assert await server.sample("vllm:e2e_request_latency_seconds_count") == 4
            assert await server.sample("http_requests_total", handler="/v1/completions", status="200") == 3
            assert await server.settled("GET", path) == (200, made)
            status, told = await server.settled("GET", path + "?stream=true&starting_after=0")
            assert status == 200
            events = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: ")]
            assert (events[0]["sequence_number"], events[-1]["response"]) == (1, made)
        memory = [f'process_resident_memory_bytes{{frontend="{index}"}}' for index in range(2)]
        await until(lambda: server.shows(*memory))
        status, continued = await server.settled("POST", "/v1/responses", input="more", previous_response_id=made["id"])
        assert (status, continued["previous_response_id"]) == (200, made["id"])
        items = (await server.settled("GET", f"/v1/responses/{continued['id']}/input_items"))[1]["data"]
        assert [item["role"] for item in items] == ["user", "assistant", "user"]

        await until(all_are_counted)
        victim = server.pid(0)
        os.kill(victim, signal.SIGKILL)
        while server.pid(0) == victim or not server.frontends._children[0].is_ready:  # noqa: ASYNC110 - see test_frontends
            await asyncio.sleep(0.01)
        with server.stopped(1):  # the new one's own sums hold what the dead one had counted
            await until(all_are_counted)
        await until(all_are_counted)
        assert (await server.settled("GET", path))[0] == 404
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]  # children log as their parent does
    assert {line["process"] for line in lines} >= {"frontend 0", "frontend 1"}


async def test_what_another_frontend_stores_can_be_cancelled_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_importable(monkeypatch)
    monkeypatch.setattr(Line.ask, "__kwdefaults__", {"timeout_s": patient_frontend_process.PATIENCE_S})
    async with served(tmp_path, patient_frontend_process.__name__) as server:

        async def is_asked() -> bool:
            return bool(server.frontends._switchboard._lines[0]._waiting)

        with server.stopped(1):
            made = (await server.ask("POST", "/v1/responses", input="hi"))[1]
        path = f"/v1/responses/{made['id']}"
        with server.stopped(0):
            kept = asyncio.create_task(server.ask("POST", f"{path}/cancel"))
            await until(is_asked)
        status, body = await kept
        assert (status, body["error"]["param"]) == (400, "response_id")
        with server.stopped(0):
            deleting = asyncio.create_task(server.ask("DELETE", path))
            await until(is_asked)
        assert (await deleting)[1]["deleted"] is True
        assert (await server.ask("GET", path))[0] == 404
