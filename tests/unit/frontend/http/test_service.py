"""The HTTP side of an engine as the supervisor holds it: it serves, drains, and ends what is left."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest

from pagewire.checkpoint.generation_config import GenerationDefaults
from pagewire.frontend.client.engine_client import AsyncEngineClient
from pagewire.frontend.http.service import HTTPService
from pagewire.frontend.templates.renderer import SplitRenderer
from pagewire.frontend.text.template_source import template_source
from pagewire.frontend.text.text_side import TextSide
from pagewire.ipc.server_config import ServerConfig
from tests.support.fake_core import FakeCore, engine_info, until
from tests.support.http_server import BOS, CHAT_TEMPLATE, EOS, VOCAB_SIZE, byte_tokenizer, ids_of
from tests.support.templates import InProcessRenderer

BODY = {"prompt": "p"}


@contextlib.asynccontextmanager
async def running_service(num_steps: int | None) -> AsyncIterator[tuple[HTTPService, FakeCore, aiohttp.ClientSession]]:
    """A service over a scripted core that answers "abc"."""
    tokenizer = byte_tokenizer()
    info = engine_info(vocab_size=VOCAB_SIZE, eos_token_ids=(EOS,), bos_token_id=BOS)
    async with (
        FakeCore(answer=lambda _request: [[*ids_of("abc"), EOS]], info=info, num_steps=num_steps) as core,
        await AsyncEngineClient.connect(core.address) as client,
    ):
        text = TextSide(
            tokenizer=tokenizer, template=template_source(tokenizer, CHAT_TEMPLATE), defaults=GenerationDefaults()
        )
        service = HTTPService(client, text, SplitRenderer(InProcessRenderer(CHAT_TEMPLATE), None), ServerConfig())
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with aiohttp.ClientSession(url) as http, service.serving([listener]):
                yield service, core, http


async def test_drain_waits_for_what_was_accepted_and_refuses_the_rest():
    async with running_service(num_steps=0) as (service, core, http):
        answering = asyncio.create_task(http.post("/v1/completions", json=BODY))
        await until(lambda: bool(core.running))
        draining = asyncio.create_task(service.drain(30))
        async with http.get("/live") as response:
            assert response.status == 200
        async with http.post("/v1/completions", json=BODY) as response:
            assert (response.status, "Retry-After" in response.headers) == (503, True)
        async with http.get("/health") as response:
            assert response.status == 503
        assert not draining.done()
        core.allow_steps(None)
        async with await answering as response:
            assert (await response.json())["choices"][0]["text"] == "abc"
        await draining


async def test_drain_of_an_idle_server_returns_at_once():
    async with running_service(num_steps=None) as (service, _, _):
        async with asyncio.timeout(5):
            await service.drain(60)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_requests_that_outlast_the_drain_are_told_why_they_end(stream):
    posted: asyncio.Task[aiohttp.ClientResponse]
    async with running_service(num_steps=1) as (service, core, http):
        posted = asyncio.create_task(http.post("/v1/completions", json={**BODY, "stream": stream}))
        await until(lambda: core.num_steps_left == 0)
        await service.drain(0.01)
        assert core.running, "it is not cut off before the server stops"
        reading = asyncio.create_task(_read(posted))
    status, text = await reading
    assert status == (200 if stream else 503)
    assert "shutting down" in text
    assert text.endswith("[DONE]\n\n") or not stream


async def _read(posted: asyncio.Task[aiohttp.ClientResponse]) -> tuple[int, str]:
    async with await posted as response:
        return response.status, await response.text()


async def test_drain_can_be_cancelled_and_the_door_stays_closed():
    async with running_service(num_steps=0) as (service, core, http):
        answering = asyncio.create_task(http.post("/v1/completions", json=BODY))
        await until(lambda: bool(core.running))
        draining = asyncio.create_task(service.drain(60))
        await asyncio.sleep(0)
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)
        async with http.post("/v1/completions", json=BODY) as response:
            assert response.status == 503
        core.allow_steps(None)
        async with await answering as response:
            assert response.status == 200
