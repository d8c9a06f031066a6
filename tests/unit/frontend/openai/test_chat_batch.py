"""POST /v1/chat/completions/batch."""

from __future__ import annotations

import pytest

from pagewire.ipc.errors import PoisonRequest
from tests.support.http_server import ids_of, message, running_server

PATH = "/v1/chat/completions/batch"


async def test_each_conversation_has_a_choice_of_its_index():
    def answer(request):
        prompt = bytes(token for token in request.inputs.prompt_token_ids if token < 256)
        return [[*ids_of("one" if b"first" in prompt else "two2"), 257]]

    async with running_server(answer=answer) as server:
        status, body = await server.post(PATH, messages=[[message("first")], [message("second")]])
        assert status == 200
        assert [(choice["index"], choice["message"]["content"]) for choice in body["choices"]] == [
            (0, "one"),
            (1, "two2"),
        ]
        assert body["usage"]["completion_tokens"] == 4 + 5
        assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 9


async def test_details_of_the_output_add_up():
    facts = {"num_speculative_tokens": 2}
    async with running_server("Hello!", info=facts, num_draft_tokens=5, num_accepted_tokens=3) as server:
        _, body = await server.post(PATH, messages=[[message("x")], [message("y")]])
        details = body["usage"]["completion_tokens_details"]
        assert details == {"accepted_prediction_tokens": 6, "rejected_prediction_tokens": 4}


@pytest.mark.parametrize("fields", [{"stream": True}, {"n": 2}, {"use_beam_search": True}])
async def test_what_does_not_go_with_it_is_refused_by_name(fields):
    async with running_server() as server:
        status, body = await server.post(PATH, messages=[[message("x")]], **fields)
        assert (status, body["error"]["param"]) == (400, next(iter(fields)))
        status, body = await server.post(PATH, messages=[message("x")])
        assert (status, body["error"]["param"]) == (400, "messages[0]")


async def test_one_that_fails_fails_all():
    async with running_server(refuses=lambda request: PoisonRequest("no")) as server:
        status, body = await server.post(PATH, messages=[[message("x")], [message("y")]])
        assert (status, body["error"]["code"]) == (500, "poison_request")
        assert not server.core.running
