"""What orchestrators ask."""

from __future__ import annotations

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
        assert (status, answer["error"]["code"]) == (500, "engine_dead")
        assert answer["error"]["type"] == "server_error"
