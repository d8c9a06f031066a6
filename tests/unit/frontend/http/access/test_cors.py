"""Web pages of other origins: closed by default; those that are named may ask, read answers, and read errors too."""

from __future__ import annotations

import pytest

from pagewire.ipc.errors import ConfigError
from pagewire.ipc.server_config import ServerConfig
from tests.support.http_server import running_server

ORIGIN = "https://app.example"
CHATS = "/v1/chat/completions"
ASKED = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


def cors_of(headers) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower().startswith("access-control")}


def config(*origins: str, **options) -> ServerConfig:
    return ServerConfig(api_key=("key",), allowed_origins=origins, **options)


async def preflight(server, origin: str, path: str = CHATS) -> tuple[int, dict[str, str]]:
    async with server.http.options(path, headers={"Origin": origin, **ASKED}) as response:
        return response.status, cors_of(response.headers)


async def test_pages_are_shut_out_by_default():
    async with running_server(config=config()) as server:
        assert await preflight(server, ORIGIN) == (204, {})
        async with server.http.get("/health", headers={"Origin": ORIGIN}) as response:
            assert cors_of(response.headers) == {}
            assert "Vary" not in response.headers


async def test_preflight_of_a_named_origin_needs_no_key_and_is_told_what_it_may():
    async with running_server(config=config(ORIGIN)) as server:
        status, headers = await preflight(server, ORIGIN)
        assert status == 204
        assert headers["Access-Control-Allow-Origin"] == ORIGIN
        assert headers["Access-Control-Allow-Methods"] == "POST"
        assert headers["Access-Control-Allow-Headers"] == "authorization,content-type"
        assert "Access-Control-Allow-Credentials" not in headers


@pytest.mark.parametrize(
    "origin",
    ["https://app.example.evil", "http://app.example", "https://app.example:8443", "null", "https://evil/app.example",
     "https://sub.app.example", ""],
)  # fmt: skip
async def test_other_origins_stay_out(origin):
    async with running_server(config=config(ORIGIN)) as server:
        assert await preflight(server, origin) == (204, {})


async def test_page_can_read_answers_streams_and_errors():
    async with running_server("x", config=config(ORIGIN)) as server:
        cases = [
            ("/health", None, 200, None),
            ("/v1/models", None, 401, None),
            ("/v1/completions", "key", 200, {"prompt": "p"}),
            ("/v1/completions", "key", 200, {"prompt": "p", "stream": True}),
            ("/v1/completions", "key", 400, {"prompt": 5}),
            ("/v1/nothing", "key", 404, None),
        ]
        for path, key, status, body in cases:
            headers = {"Origin": ORIGIN} | ({"Authorization": f"Bearer {key}"} if key else {})
            method = "GET" if body is None else "POST"
            async with server.http.request(method, path, json=body, headers=headers) as response:
                assert response.status == status
                assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
                exposed = response.headers["Access-Control-Expose-Headers"].lower().split(", ")
                assert exposed == ["x-request-id", "retry-after", "x-should-retry"]
                assert response.headers["Vary"] == "Origin"


async def test_answers_to_others_say_that_they_depend_on_the_origin():
    async with running_server(config=config(ORIGIN)) as server, server.http.get("/health") as response:
        assert response.headers["Vary"] == "Origin"
        assert cors_of(response.headers) == {}


async def test_any_origin_is_a_star_and_never_with_credentials():
    async with running_server(config=config("*")) as server:
        _, headers = await preflight(server, ORIGIN)
        assert headers["Access-Control-Allow-Origin"] == "*"
        assert "Access-Control-Allow-Credentials" not in headers
    with pytest.raises(ConfigError, match="--allow-credentials"):
        config("*", allow_credentials=True)


async def test_credentials_methods_and_headers_are_as_configured():
    options = {"allow_credentials": True, "allowed_methods": ("GET",), "allowed_headers": ("X-Mine",)}
    async with running_server(config=config(ORIGIN, **options)) as server:
        _, headers = await preflight(server, ORIGIN)
        assert headers["Access-Control-Allow-Credentials"] == "true"
        assert headers["Access-Control-Allow-Methods"] == ""
        assert headers["Access-Control-Allow-Headers"] == "X-Mine"


@pytest.mark.parametrize("origin", ["app.example", "https://", "https://a.example/path", "https://a b", "*.example"])
def test_what_is_no_origin_is_refused_at_start(origin):
    with pytest.raises(ConfigError, match="--allowed-origins"):
        config(origin)
