"""A server as terminal commands see it: its models, its streams, its refusals in one line."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pagewire.frontend.terminal import connection as connection_module
from pagewire.frontend.terminal.address import checked_url
from pagewire.frontend.terminal.connection import ServerConnection, explain_unknown_model, is_serving
from pagewire.ipc.errors import ConfigError, EngineError, InvalidRequest, MachineError
from pagewire.ipc.server_config import ServerConfig
from tests.support.http_server import joined_text, message, running_server


async def test_models_streams_and_refusals_come_through():
    def use(url: str) -> None:
        connection = ServerConnection(f"{url}/v1/")
        events: list[Any] = []
        model = connection.choose_model(None)
        body = {"model": model, "messages": [message("hi")], "stream": True}
        connection.stream("/v1/chat/completions", body, events.append)
        assert joined_text(events) == "hello"
        with pytest.raises(ConfigError, match=f"no model other. The server has {model}"):
            connection.choose_model("other")
        with pytest.raises(InvalidRequest, match="temperature"):
            connection.stream("/v1/chat/completions", {**body, "temperature": -1}, events.append)
        assert "vllm:num_requests_running" in connection.get_text("/metrics")
        assert is_serving(url)
        connection.close()
        connection.close()

    async with running_server("hello") as server:
        await asyncio.to_thread(use, server.url)


async def test_a_missing_key_is_told_and_a_right_one_taken():
    def use(url: str) -> None:
        without = ServerConnection(url)
        with pytest.raises(ConfigError, match="give --api-key, or set PAGEWIRE_API_KEY"):
            without.model_names()
        without.close()
        with_key = ServerConnection(url, api_key="secret")
        assert with_key.model_names()
        with_key.close()

    async with running_server("hello", config=ServerConfig(api_key=("secret",))) as server:
        await asyncio.to_thread(use, server.url)


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ([{"choices": [{"delta": {"content": "a"}}]}], "ended its answer before it was whole"),
        ([{"error": {"message": "out of memory"}}], "out of memory"),
        ([{"choices": [{"delta": {"content": "a"}}]}, "more"], "broke the connection off in the middle of its answer"),
        ([{"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}], None),
    ],
)
async def test_an_answer_that_breaks_off_is_no_whole_one(events: list[Any], fault: str | None):
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if events[-1] == "more":  # is promised, and never comes
            response.content_length = 10_000
            response.force_close()
        await response.prepare(request)
        for event in events[:1]:
            await response.write(b"data: " + msgspec.json.encode(event) + b"\n\n")
        return response

    def use(url: str) -> None:
        connection = ServerConnection(url)
        try:
            connection.stream("/v1/completions", {}, lambda _event: None)
        finally:
            connection.close()

    app = web.Application()
    app.router.add_post("/below/v1/completions", answer)  # as a proxy may have it
    async with TestServer(app) as server:
        url = str(server.make_url("/below/v1"))
        if fault is None:
            await asyncio.to_thread(use, url)
        else:
            with pytest.raises((EngineError, MachineError), match=fault):
                await asyncio.to_thread(use, url)


def test_a_server_that_is_not_there_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    connection = ServerConnection(url)
    with pytest.raises(MachineError, match="Connection refused; is `pagewire serve` running there"):
        connection.model_names()
    connection.close()
    assert not is_serving(url)


def test_a_server_that_stands_still_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_module, "_LOOK_TIMEOUT_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # takes connections, and says nothing
        connection = ServerConnection(f"http://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(MachineError, match=r"says nothing for 0\.01 s"):
            connection.get_text("/metrics")
        connection.close()


def test_an_address_is_checked_before_anything_else():
    assert checked_url("https://host/v1/") == "https://host"
    assert checked_url("http://[::1]:8000") == "http://[::1]:8000"
    assert checked_url("http://host/below/v1/chat/completions") == "http://host/below"
    for url in ("http://", "http://:8000", "http://host:99999", "http://host:0", "http://[::1"):
        with pytest.raises(ConfigError, match="must name a host, and a port"):
            checked_url(url)
    with pytest.raises(ConfigError, match="must start with http"):
        checked_url("host:8000")


@pytest.mark.parametrize("name", ["qwen", "Qwen3-0.6b", "Qwen/Qwen3-0.6"])
def test_a_model_that_is_nearly_there_is_named(name: str):
    assert "did you mean Qwen/Qwen3-0.6B?" in explain_unknown_model(name, ["a/b", "Qwen/Qwen3-0.6B"])
