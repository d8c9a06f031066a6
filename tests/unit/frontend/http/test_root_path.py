"""A server below a path of its reverse proxy."""

from __future__ import annotations

import contextlib
import socket

import aiohttp
import pytest

from pagewire.frontend.http import server as http_server
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.server_config import ServerConfig
from tests.support.http_server import running_server


@contextlib.asynccontextmanager
async def server_below(root_path: str, **config: object):
    async with running_server("x") as server, contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        app = http_server.create_app(server.serving, ServerConfig(**config))
        await stack.enter_async_context(http_server.serve(app, [listener], root_path=root_path))
        async with aiohttp.ClientSession(f"http://127.0.0.1:{listener.getsockname()[1]}") as http:
            yield http


async def test_routes_are_found_with_the_path_and_without():
    async with server_below("/llm/a") as http:
        for prefix in ("/llm/a", ""):
            async with http.post(f"{prefix}/v1/completions?x=1", json={"prompt": "p"}) as response:
                assert (await response.json())["choices"][0]["text"] == "x"
        for path in ("/llm/a/llm/a/health", "/llm/health", "/llm/ahealth"):
            assert (await http.get(path)).status == 404, path
        assert (await http.get("/llm/a/health?x=1")).status == 200
        for path in ("/llm/a", "/llm/a/"):
            assert (await http.get(path)).status == (await http.get("/")).status


async def test_keys_are_asked_for_below_the_path_too():
    async with server_below("/llm", api_key=("secret",)) as http:
        for path, status in (("/llm/v1/models", 401), ("/v1/models", 401), ("/llm/health", 200)):
            assert (await http.get(path)).status == status
        assert (await http.get("/llm/v1/models", headers={"Authorization": "Bearer secret"})).status == 200


@pytest.mark.parametrize("path", ["llm", "/llm/", "/", "/a b", "/../x/", "/a?b"])
def test_what_is_no_such_path_is_refused(path: str):
    with pytest.raises(ConfigError, match="--root-path"):
        ServerConfig(root_path=path)


async def test_description_may_be_left_out():
    async with server_below("", disable_fastapi_docs=True) as http:
        for path in ("/openapi.json", "/docs"):
            assert (await http.get(path)).status == 404
