"""What surrounds every handler: keys, ids, errors, the log."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from pagewire.ipc.config import ServerConfig
from tests.support.http_server import running_server

KEYS = ServerConfig(api_key=("first-key", "second-key"))


async def test_unexpected_exception_is_a_500_without_a_traceback(caplog, monkeypatch):
    async with running_server() as server:

        async def fail(*args, **kwargs):
            raise RuntimeError("secret detail")

        monkeypatch.setattr(server.serving.tokenizer, "encode_async", fail)
        status, answer = await server.post("/v1/completions", prompt="p")
        assert status == 500
        assert (answer["error"]["type"], answer["error"]["code"]) == ("server_error", "internal_error")
        assert "secret" not in json.dumps(answer)
        assert "secret detail" in caplog.text


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/metrics", "/nothing", "/v1/models/"])
@pytest.mark.parametrize("key", [None, "", "Bearer ", "Bearer wrong", "first-key", "Basic first-key"])
async def test_everything_but_health_needs_a_key(path, key):
    async with running_server(config=KEYS) as server:
        headers = {} if key is None else {"Authorization": key}
        async with server.http.get(path, headers=headers) as response:
            assert response.status == 401
            assert (await response.json())["error"]["code"] == "invalid_api_key"
            assert response.headers["WWW-Authenticate"] == "Bearer"


async def test_every_key_opens_and_health_needs_none():
    async with running_server(config=KEYS) as server:
        for key in KEYS.api_key:
            async with server.http.get("/v1/models", headers={"Authorization": f"bearer {key}"}) as response:
                assert response.status == 200
        for path in ("/health", "/live", "/ping"):
            async with server.http.get(path) as response:
                assert response.status == 200


async def test_preflight_needs_no_key_and_opens_nothing():
    async with running_server(config=KEYS) as server:
        headers = {"Origin": "http://evil.example", "Access-Control-Request-Headers": "authorization"}
        async with server.http.options("/v1/chat/completions", headers=headers) as response:
            assert response.status == 204
            assert response.headers["Allow"] == "POST"
            assert not [name for name in response.headers if name.lower().startswith("access-control")]


async def test_request_id_of_the_client_is_echoed_and_used():
    async with running_server("x") as server:
        for stream in (False, True):
            headers = {"X-Request-Id": "my-id.1"}
            body = {"prompt": "p", "stream": stream}
            async with server.http.post("/v1/completions", json=body, headers=headers) as response:
                assert response.headers["X-Request-Id"] == "my-id.1"
                assert '"id":"cmpl-my-id.1"' in await response.text()


@pytest.mark.parametrize("chosen", ["x" * 129, "a b", "ä", '"', "<script>"])
async def test_unsafe_request_id_is_replaced(chosen):
    async with running_server("x") as server:
        headers = {"X-Request-Id": chosen}
        async with server.http.post("/v1/completions", json={"prompt": "p"}, headers=headers) as response:
            assert response.status == 200
            assert response.headers["X-Request-Id"] != chosen
            assert len((await response.json())["id"]) < 60


async def test_two_requests_with_one_id_both_succeed():
    async with running_server("abc") as server:
        answers = await asyncio.gather(*(server.complete(request_id="same") for _ in range(2)))
        assert [answer["choices"][0]["text"] for answer in answers] == ["abc", "abc"]


async def test_error_answers_carry_the_request_id_too():
    async with (
        running_server() as server,
        server.http.post("/v1/completions", json={}, headers={"X-Request-Id": "mine"}) as response,
    ):
        assert (response.status, response.headers["X-Request-Id"]) == (400, "mine")


async def test_requests_are_logged_on_demand(caplog):
    caplog.set_level(logging.INFO)
    async with running_server("x", log_requests=True) as server:
        await server.complete(request_id="mine", max_tokens=3)
    assert "request_id=cmpl-mine" in caplog.text
    assert "num_prompt_tokens=1" in caplog.text
    assert "max_tokens=3" in caplog.text
