"""The generations of one HTTP request run side by side, whichever way they are read."""

from __future__ import annotations

import asyncio

from pagewire.ipc.requests import AbortRequests, AddRequest
from tests.support.http_server import ids_of, running_server


async def test_stop_string_of_a_later_prompt_ends_it_while_an_earlier_one_runs():
    def answer(request: AddRequest) -> list[list[int]]:
        return [ids_of("x" * 100 if request.inputs.prompt_token_ids == ids_of("long") else "a.b.c.d")]

    async with running_server(answer=answer, num_steps=3) as server:
        body = {"prompt": ["long", "short"], "stop": ["."], "max_tokens": 50}
        posting = asyncio.create_task(server.complete(**body))
        abort = await server.core.next(AbortRequests)
        assert len(abort.children) == 1
        assert len(server.core.running) == 1, "the long one runs on"
        server.core.allow_steps(None)
        choices = (await posting)["choices"]
        assert [choice["text"] for choice in choices] == ["x" * 50, "a"]
        assert [choice["finish_reason"] for choice in choices] == ["length", "stop"]
