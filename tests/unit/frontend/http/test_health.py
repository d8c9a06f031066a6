"""What orchestrators ask."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagewire.ipc.errors import EngineDead
from pagewire.version import __version__
from tests.support.http_server import running_server


async def test_version_is_the_packages():
    async with running_server() as server, server.http.get("/version") as response:
        assert await response.json() == {"version": __version__}


async def test_health_is_empty_while_the_engine_lives_and_503_after():
    async with running_server() as server:
        for path in ("/health", "/ping", "/live"):
            async with server.http.get(path) as response:
                assert (response.status, await response.read()) == (200, b"")
        server.client.mark_dead(EngineDead("The engine ended."))
        for path, status in (("/health", 503), ("/ping", 503), ("/live", 200)):
            async with server.http.get(path) as response:
                assert response.status == status
        status, answer = await server.post("/v1/completions", prompt="p")
        assert (status, answer["error"]["code"]) == (503, "engine_dead")
        assert answer["error"]["type"] == "service_unavailable_error"


async def test_engine_that_restarts_or_is_silent_is_not_ready_until_it_is_back(monkeypatch):
    async with running_server() as server:

        async def statuses() -> list[int]:
            found = []
            for path in ("/health", "/ping", "/live"):
                async with server.http.get(path) as response:
                    found.append(response.status)
                    if response.status != 200:
                        assert (await response.json())["error"]["code"] == "engine_dead"
                        assert int(response.headers["Retry-After"]) >= 1
            return found

        assert await statuses() == [200, 200, 200]
        async with asyncio.timeout(10):
            server.core.answers_pings = False
            while await statuses() != [503, 503, 200]:
                pass
            server.core.answers_pings = True
            while await statuses() != [200, 200, 200]:
                pass
        monkeypatch.setattr(type(server.client), "is_serving", False)
        assert await statuses() == [503, 503, 200]


async def test_draining_server_is_not_ready_but_lives():
    async with running_server() as server:
        server.serving.admission.close()
        for path, status in (("/health", 503), ("/ping", 503), ("/live", 200), ("/metrics", 200)):
            async with server.http.get(path) as response:
                assert response.status == status


@pytest.mark.parametrize(
    "accept",
    [
        "*/*",
        "text/plain;version=0.0.4",
        "text/plain;version=1.0.0",
        # Prometheus 2 and 3
        "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3",
    ],
)
async def test_every_scraper_gets_the_same_names(accept):
    async with running_server() as server, server.http.get("/metrics", headers={"Accept": accept}) as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = list(text_string_to_metric_families(await response.text()))
    names = {sample.name for family in families for sample in family.samples}
    assert names >= {"vllm:num_requests_running", "vllm:prompt_tokens_total", "vllm:time_to_first_token_seconds_bucket"}
    assert {family.name for family in families if family.name.startswith("vllm_")} == set()
