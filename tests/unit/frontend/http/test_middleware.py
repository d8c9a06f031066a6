"""What surrounds every handler: keys, ids, errors, the log."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from pagewire.frontend.http.middleware import OPEN_PATHS
from pagewire.frontend.http.server import create_app
from pagewire.ipc.server_config import ServerConfig
from tests.support.fake_core import until
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


async def test_every_route_and_method_needs_a_key_but_those_for_orchestrators():
    async with running_server(config=KEYS) as server:
        walked = set()
        for route in create_app(server.serving, KEYS).router.routes():
            assert route.resource is not None
            pattern = route.resource.canonical
            path = pattern.replace("{model}", "fake").replace("{name}", "app.js")
            for method in (
                ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "TRACE") if route.method == "*" else (route.method,)
            ):
                async with server.http.request(method, path) as response:
                    assert (response.status == 401) != (pattern in OPEN_PATHS), (method, path)
            walked.add(pattern)
        assert walked >= {*OPEN_PATHS, "/v1/chat/completions", "/v1/models", "/tokenize", "/metrics"}


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("GET /v1/models", "a/b"), ("GET /v1/models", "a?"), ("GET /v1/models", "a#"), ("GET /v1/models", "health"),
        ("GET /v1/models", "x/health?"), ("GET //v1/models", "x"), ("GET /V1/models", "x"),
        ("GET %2fv1/models", "x"), ("GET /%76%31/models", "x"), ("GET /v1/models/../models", "x"),
        ("GET /health/../v1/models", "x"), ("GET /health/..%2fv1/models", "x"), ("GET /v1/models#/health", "x"),
        ("GET /v1/models?/health", "x"), ("GET /v1/models;/health", "x"), ("GET /v1//models", "x"),
        ("GET http://x/v1/models", "x"), ("GET http://health/v1/models", "health"), ("POST /v1/models", "x"),
        ("get /v1/models", "x"), ("DELETE /v1/completions", "x"), ("OPTIONS /v1/nothing", "x"),
        ("GET /HEALTH", "x"), ("GET /health/", "x"), ("GET /metrics/", "x"), ("GET /v1/models/health", "x"),
        ("OPTIONS *", "x"), ("CONNECT x:80", "x"), ("TRACE /v1/models", "x"), ("PROPFIND /v1/models", "x"),
    ],
)  # fmt: skip
async def test_no_spelling_of_a_path_gets_around_the_key(line, host):
    async with running_server("secret", config=KEYS) as server:
        status, body = await exchange(server.url, f"{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        assert status in (400, 401), body
        assert "fake" not in body


async def test_header_that_is_no_key_is_a_401_whatever_bytes_it_holds():
    async with running_server(config=KEYS) as server:
        for value in (b"Bearer \xff\xfe", b"Bearer", b"bearer \xc3\xa4", b"Bearer " + b"k" * 7000):
            head = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: " + value + b"\r\n\r\n"
            status, _ = await exchange(server.url, head)
            assert status == 401


async def test_preflight_needs_no_key_and_opens_nothing():
    async with running_server(config=KEYS) as server:
        headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
        async with server.http.options("/v1/chat/completions", headers=headers) as response:
            assert response.status == 204
            assert response.headers["Allow"] == "POST"
            assert not [name for name in response.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    "headers",
    [{}, {"Origin": "http://a.example"}, {"Access-Control-Request-Method": "POST"},
     {"Origin": "http://a.example", "Access-Control-Request-Headers": "authorization"}],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/metrics"])
async def test_options_that_are_no_preflight_need_a_key(path, headers):
    async with running_server(config=KEYS) as server:
        async with server.http.options(path, headers=headers) as response:
            assert response.status == 401
            assert "Allow" not in response.headers
        async with server.http.options(path, headers={**headers, "Authorization": "Bearer first-key"}) as response:
            assert response.status == 204
            assert response.headers["Allow"]


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


# ---- Expect


def expecting(body: bytes, expect: str, *, path: str = "/v1/completions", headers: str = "") -> str:
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Expect: {expect}\r\n{headers}\r\n"
    )


async def test_client_that_waits_with_its_body_is_told_to_go_on():
    async with running_server("x") as server:
        body = b'{"prompt": "p"}'
        reader, writer = await connect(server.url)
        writer.write(expecting(body, "100-Continue", headers="Connection: close\r\n").encode())
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'"text":"x"' in answer
        writer.close()


@pytest.mark.parametrize(
    ("expect", "headers", "status"),
    [
        ("100-continue", "", 401),
        ("100-continue", "Authorization: Bearer wrong\r\n", 401),
        ("102-processing", "Authorization: Bearer first-key\r\n", 417),
        ("102-processing", "", 401),
    ],
)
async def test_body_is_not_asked_for_where_it_would_not_be_used(expect, headers, status):
    async with running_server(config=KEYS) as server:
        reader, writer = await connect(server.url)
        writer.write(expecting(b"{}", expect, headers=headers).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert int(head.split()[1]) == status
        assert json.loads(await reader.readuntil(b"}}"))["error"]["message"]
        writer.close()


async def test_body_that_is_too_large_is_refused_before_it_is_sent():
    async with running_server() as server:
        reader, writer = await connect(server.url)
        writer.write(expecting(b"{}", "100-continue").replace("Length: 2", "Length: 100000000").encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413")
        writer.close()


async def test_odd_expectation_on_an_unknown_path_has_openais_shape_too():
    async with running_server() as server:
        status, body = await exchange(
            server.url, expecting(b"", "tea", path="/nothing", headers="Connection: close\r\n")
        )
        assert status == 417
        assert json.loads(body)["error"]["type"] == "invalid_request_error"


# ---- draining


async def test_draining_refuses_new_requests_and_finishes_those_inside():
    async with running_server("abc", num_steps=0) as server:
        accepted = [asyncio.create_task(server.complete()), asyncio.create_task(server.stream_completion())]
        await until(lambda: len(server.core.running) == 2)
        server.serving.admission.close()
        idle = asyncio.create_task(server.serving.admission.wait_idle())
        for path, body in (("/v1/completions", {"prompt": "p"}), ("/v1/chat/completions", {}), ("/tokenize", {})):
            async with server.http.post(path, json=body) as response:
                assert response.status == 503
                assert int(response.headers["Retry-After"]) >= 1
                assert response.headers["Connection"] == "close"
                assert (await response.json())["error"]["code"] == "overloaded"
        assert not idle.done()
        server.core.allow_steps(None)
        whole, chunks = await asyncio.gather(*accepted)
        assert whole["choices"][0]["text"] == "abc"
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abc"
        await idle


async def test_answers_do_not_name_the_software_underneath():
    async with running_server() as server:
        for path in ("/health", "/nothing"):
            async with server.http.get(path) as response:
                assert response.headers["Server"] == "pagewire"
        async with server.http.post("/v1/completions", json={"prompt": "p", "stream": True}) as response:
            assert response.headers["Server"] == "pagewire"
        reader, writer = await connect(server.url)
        writer.write(b"nonsense\r\n\r\n")
        assert b"aiohttp" not in await reader.read()
        writer.close()


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a bare connection to a server."""
    return await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))


async def exchange(url: str, data: str | bytes) -> tuple[int, str]:
    """Send bytes over a bare connection; return the answer's status and body, after which the server hangs up."""
    reader, writer = await connect(url)
    writer.write(data.encode() if isinstance(data, str) else data)
    async with asyncio.timeout(15):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body.decode()


async def test_a_key_may_come_as_anthropics_clients_send_it():
    async with running_server(config=KEYS) as server:
        for key, status in ((KEYS.api_key[0], 200), ("wrong", 401)):
            async with server.http.get("/v1/models", headers={"x-api-key": key}) as response:
                assert response.status == status
        headers = {"x-api-key": KEYS.api_key[0], "Authorization": "Bearer wrong"}
        async with server.http.get("/v1/models", headers=headers) as response:
            assert response.status == 401
