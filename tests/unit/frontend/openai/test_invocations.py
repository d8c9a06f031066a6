"""POST /invocations finds the endpoint by the body's shape."""

from __future__ import annotations

from tests.support.http_server import message, running_server


async def test_the_bodys_shape_says_which_endpoint_is_meant():
    async with running_server("hello") as server:
        _, body = await server.post("/invocations", messages=[message("x")], service_tier="auto")
        assert body["object"] == "chat.completion"
        assert (body["choices"][0]["message"]["content"], body["service_tier"]) == ("hello", "default")
        _, body = await server.post("/invocations", prompt="x")
        assert body["object"] == "text_completion"
        status, body = await server.post("/invocations", input="x", unheard_of=1)
        assert (status, body["error"]["param"]) == (400, "unheard_of"), "the embeddings endpoint's own refusal"
        chunks = await server.stream("/invocations", prompt="x")
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_a_body_of_no_endpoint_is_refused():
    async with running_server("hello") as server:
        status, _ = await server.post("/invocations", words="x")
        assert status == 415
