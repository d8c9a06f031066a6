"""GET /load, and what /metrics sums up to after a load of all endpoints."""

from __future__ import annotations

import asyncio

from pagewire.ipc.errors import Overloaded
from pagewire.ipc.requests import AddRequest
from tests.support.http_server import message, running_server


async def load_of(server) -> int:
    async with server.http.get("/load") as response:
        assert response.status == 200
        return (await response.json())["server_load"]


async def test_requests_are_counted_while_they_are_answered():
    async with running_server("x", num_steps=0) as server:
        assert await load_of(server) == 0
        task = asyncio.create_task(server.complete())
        await server.core.next(AddRequest)
        assert await load_of(server) == 1
        server.core.allow_steps(None)
        await task
        assert await load_of(server) == 0


async def usages(server) -> list[tuple[int, int, int]]:
    """Use every endpoint that generates; return (prompt, cached and output tokens) of each answer."""
    chat = {"messages": [message("hi")], "n": 2, "temperature": 1}
    bodies = [
        await server.complete(prompt=["one", "three"], best_of=2),
        await server.chat(**chat),
        (await server.stream_chat(**chat, stream_options={"include_usage": True}))[-1],
        (await server.stream_completion(stream_options={"include_usage": True}, stop="llo"))[-1],
    ]
    figures = [
        (
            body["usage"]["prompt_tokens"],
            body["usage"]["prompt_tokens_details"]["cached_tokens"],
            body["usage"]["completion_tokens"],
        )
        for body in bodies
    ]
    _, response = await server.post("/v1/responses", input="hi", max_output_tokens=3)
    usage = response["usage"]
    figures.append((usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]))
    _, answer = await server.post("/v1/messages", messages=[message("hi")], max_tokens=100)
    usage = answer["usage"]
    num_cached = usage["cache_read_input_tokens"]
    figures.append((usage["input_tokens"] + num_cached, num_cached, usage["output_tokens"]))
    return figures


async def test_the_sums_of_requests_are_those_of_their_usages():
    async with running_server("hello", num_cached_tokens=2) as server:
        figures = await usages(server)
        prompt, cached, output = (sum(column) for column in zip(*figures, strict=True))
        assert await server.metric("vllm:request_prompt_tokens_sum") == prompt
        assert await server.metric("vllm:request_generation_tokens_sum") == output
        assert await server.metric("vllm:prompt_tokens_cached_total") == cached
        by_source = [
            await server.metric("vllm:prompt_tokens_by_source_total", source=source)
            for source in ("local_compute", "local_cache_hit")
        ]
        assert by_source == [prompt - cached, cached]


async def test_requests_that_are_not_taken_are_counted_by_reason():
    async with running_server("x", refuses=lambda request: Overloaded("full")) as server:
        status, _ = await server.post("/v1/completions", prompt="p")
        assert status == 503
        server.serving.admission.close()
        status, _ = await server.post("/v1/messages", messages=[message("x")], max_tokens=5)
        assert status == 503
        for reason in ("overloaded", "draining"):
            assert await server.metric("vllm:admission_rejections_total", reason=reason) == 1
