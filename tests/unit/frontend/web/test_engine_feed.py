"""GET /v1/engine/events: pictures made once for all viewers, none while nobody watches, and an end with the server."""

from __future__ import annotations

import asyncio
import json

import pytest

from pagewire.frontend.http.together import TOGETHER
from pagewire.frontend.web.engine_feed import EngineFeed
from pagewire.ipc.errors import Overloaded
from pagewire.ipc.outputs import StepStats
from pagewire.ipc.requests import CallUtility
from pagewire.ipc.server_config import ServerConfig
from tests.support.http_server import running_server

VIEW = {"stats": {"num_steps": 3, "num_generation_tokens": 7}, "cells": "0123", "requests": []}


def num_calls(server) -> int:
    return sum(isinstance(message, CallUtility) for message in server.core.received)


def feed_of(server, **options) -> EngineFeed:
    server.core.answers["view"] = VIEW
    totals = server.serving.metrics.totals
    return EngineFeed(server.client, server.app[TOGETHER].figures, totals, wall_clock=lambda: 5.0, **options)


async def test_all_viewers_get_one_picture():
    async with running_server() as server:
        feed = feed_of(server, interval_s=60)
        first, second = feed.join(), feed.join()
        picture = await first.get()
        assert picture == await second.get()
        late = feed.join()
        assert await late.get() == picture, "who comes later need not wait for the next"
        assert num_calls(server) == 1
        shown = json.loads(picture)
        assert shown["cores"] == [VIEW]
        assert shown["totals"]["num_generation_tokens"] == 7
        assert (shown["time_s"], shown["model"], shown["is_serving"]) == (5.0, "fake", True)
        feed.end()


async def test_nothing_is_asked_while_nobody_watches():
    async with running_server() as server:
        feed = feed_of(server, interval_s=0)
        inbox = feed.join()
        for _ in range(3):
            assert await inbox.get()
        feed.leave(inbox)
        await server.client.call_utility("stats")  # behind whatever was under way
        before = num_calls(server)
        await server.client.call_utility("stats")
        assert num_calls(server) == before + 1


async def test_a_slow_viewer_gets_the_latest_picture_and_no_backlog():
    async with running_server() as server:
        feed = feed_of(server, interval_s=0)
        slow, quick = feed.join(), feed.join()
        for _ in range(5):
            await quick.get()
        assert slow.qsize() == 1
        feed.end()
        assert await slow.get() is None


async def test_latencies_are_means_of_what_came_since_the_last_picture():
    async with running_server("hello") as server:
        feed = feed_of(server, interval_s=0)
        inbox = feed.join()
        assert json.loads(await inbox.get())["latencies"] == {"first_token_s": None, "inter_token_s": None}
        server.serving.metrics.time_to_first_token.observe(2.0)
        server.serving.metrics.time_to_first_token.observe(4.0)
        means = [json.loads(await inbox.get())["latencies"]["first_token_s"] for _ in range(3)]
        assert [mean for mean in means if mean is not None] == [3.0]
        feed.end()


async def test_viewers_beyond_the_limit_are_refused():
    async with running_server() as server:
        feed = feed_of(server, max_viewers=1)
        inbox = feed.join()
        with pytest.raises(Overloaded, match="1 viewers"):
            feed.join()
        feed.leave(inbox)
        feed.leave(feed.join())


async def test_a_core_that_does_not_answer_is_shown_as_none():
    async with running_server(answers_itself=True) as server:
        feed = feed_of(server)

        async def nobody(*args: object, **options: object) -> list[None]:
            return [None]

        server.client.call_each = nobody
        inbox = feed.join()
        assert json.loads(await inbox.get())["cores"] == [None]
        feed.end()


async def test_totals_have_what_cores_did_before_anybody_watched():
    async with running_server() as server:
        server.serving.metrics.step_done(0, ("earlier", 1), StepStats(num_steps=2, num_generation_tokens=5))
        feed = feed_of(server)
        inbox = feed.join()
        assert json.loads(await inbox.get())["totals"]["num_generation_tokens"] == 5 + 7
        feed.end()


async def test_a_picture_that_fails_ends_the_streams_and_the_next_viewer_gets_others(caplog):
    async with running_server() as server:
        feed = feed_of(server)
        server.core.answers["view"] = {"cells": "0"}
        inbox = feed.join()
        assert await inbox.get() is None
        assert "no picture of the engine" in caplog.text
        assert "KeyError" in caplog.text
        feed.leave(inbox)
        server.core.answers["view"] = VIEW
        assert await feed.join().get()
        feed.end()


async def test_the_stream_needs_a_key_and_ends_with_the_server():
    async with running_server(config=ServerConfig(api_key=("secret",))) as server:
        server.core.answers["view"] = VIEW
        async with server.http.get("/v1/engine/events") as response:
            assert response.status == 401
        key = {"Authorization": "Bearer secret"}
        async with server.http.get("/v1/engine/events", headers=key) as response:
            assert response.content_type == "text/event-stream"
            first = await response.content.readuntil(b"\n\n")
            assert json.loads(first.removeprefix(b"data: "))["cores"] == [VIEW]
            await server.app.shutdown()
            async with asyncio.timeout(5):
                assert (await response.text()).endswith("data: [DONE]\n\n")


async def test_a_viewer_does_not_hold_up_a_drain():
    async with running_server() as server:
        server.core.answers["view"] = VIEW
        async with server.http.get("/v1/engine/events") as response:
            await response.content.readuntil(b"\n\n")
            assert server.serving.admission.num_answering == 0
