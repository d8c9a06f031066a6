from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pagewire.frontend.bench.dataset.token_counter import TokenCounter, estimated_tokens
from tests.support.http_server import running_server

Handler = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def counter_for(tokenize: Handler) -> AsyncIterator[TokenCounter]:
    app = web.Application()
    app.router.add_post("/tokenize", tokenize)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        yield await TokenCounter.connect(session, str(server.make_url("")).rstrip("/"), "m")


async def test_the_server_counts_with_its_own_vocabulary():
    async with running_server() as server, aiohttp.ClientSession() as session:
        counter = await TokenCounter.connect(session, server.url, "fake")
        assert counter.is_exact
        assert await counter.count("four bytes") == 10  # one token a byte, and no begin-of-text token


async def test_a_server_that_takes_content_is_asked_in_its_way():
    async def tokenize(request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response({"tokens": list(range(len(body.get("content", "").split())))})

    async with counter_for(tokenize) as counter:
        assert counter.is_exact
        assert await counter.count("a b c d") == 4


@pytest.mark.parametrize("answer", ["{}", "no JSON", '{"tokens": []}'])
async def test_a_server_that_can_not_count_gets_an_estimate(answer: str):
    async def tokenize(_request: web.Request) -> web.Response:
        return web.Response(text=answer)

    async with counter_for(tokenize) as counter:
        assert not counter.is_exact
        assert await counter.count("one two three.") == 4


async def test_a_text_that_the_server_refuses_is_estimated():
    async def tokenize(request: web.Request) -> web.Response:
        is_long = len((await request.json())["prompt"]) > 100
        return web.Response(status=400) if is_long else web.json_response({"tokens": [1, 2]})

    async with counter_for(tokenize) as counter:
        assert await counter.count("x") == 2
        assert await counter.count("word " * 500) == 500


@pytest.mark.parametrize(
    ("text", "count"), [("", 0), ("the cat", 2), ("internationalization", 3), ("2026!", 5), ("\u6f22\u5b57", 2)]
)
def test_estimates(text: str, count: int):
    assert estimated_tokens(text) == count
