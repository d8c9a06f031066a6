"""`chat_template` and `chat_template_kwargs` of requests, as the chat endpoint and /tokenize take them."""

from __future__ import annotations

import pytest

from pagewire.frontend.templates.jobs import RenderChat
from pagewire.frontend.templates.limits import MAX_BROUGHT_TEMPLATE_CHARS
from pagewire.frontend.templates.renderer import SplitRenderer
from pagewire.ipc.errors import Overloaded
from tests.support.http_server import CHAT_TEMPLATE, ids_of, message, running_server
from tests.support.templates import InProcessRenderer

PATHS = ("/v1/chat/completions", "/tokenize")
THEIRS = "{{ messages[0].content }}, {{ mood }}"


def trusting() -> SplitRenderer:
    return SplitRenderer(InProcessRenderer(CHAT_TEMPLATE), InProcessRenderer(None))


@pytest.mark.parametrize("path", PATHS)
async def test_a_template_of_a_request_is_refused_unless_trusted(path):
    async with running_server("x") as server:
        status, answer = await server.post(path, messages=[message("hi")], chat_template=THEIRS)
        assert (status, answer["error"]["param"]) == (400, "chat_template")
        assert "--trust-request-chat-template" in answer["error"]["message"]
        assert not server.core.running


async def test_a_trusted_template_makes_the_prompt():
    async with running_server("x", chats=trusting()) as server:
        arguments = {"messages": [message("hi")], "chat_template": THEIRS, "chat_template_kwargs": {"mood": "glad"}}
        status, answer = await server.post("/tokenize", **arguments)
        assert (status, answer["tokens"]) == (200, ids_of("hi, glad"))
        usage = (await server.chat(**arguments))["usage"]
        assert usage["prompt_tokens"] == len("hi, glad")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "template",
    ["{% for %}", "{{ raise_exception('no') }}", "{{ ''.__class__.__mro__ }}", "{{ '\\ud83d' }}", "{{ 1/0 }}"],
)
async def test_a_bad_template_of_a_request_is_a_400(path, template):
    async with running_server("x", chats=trusting()) as server:
        status, answer = await server.post(path, messages=[message("hi")], chat_template=template)
        assert status == 400
        assert answer["error"]["type"] == "invalid_request_error"
        assert "Traceback" not in answer["error"]["message"]


@pytest.mark.parametrize("value", [2**64, -(2**64), 10**400])
async def test_numbers_beyond_the_wire_are_refused_among_template_variables(value):
    async with running_server("x") as server:
        status, answer = await server.post(
            "/v1/chat/completions", messages=[message("hi")], chat_template_kwargs={"n": value}
        )
        assert status == 400
        assert answer["error"]["type"] == "invalid_request_error"


class Busy:
    """A helper that got no processor."""

    async def render(self, chat: RenderChat) -> str:
        raise Overloaded("The chat was not rendered within 10 s: the machine is too busy; try again later.")


async def test_a_helper_that_gets_no_processor_is_a_503_with_retry_after():
    async with running_server("x", chats=Busy()) as server:
        body = {"messages": [message("hi")]}
        async with server.http.post("/v1/chat/completions", json=body) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1


@pytest.mark.parametrize("path", PATHS)
async def test_a_template_of_a_request_is_bounded(path):
    async with running_server("x", chats=trusting()) as server:
        longest = "x" * MAX_BROUGHT_TEMPLATE_CHARS
        status, answer = await server.post(path, messages=[message("hi")], chat_template=longest + "x")
        assert (status, answer["error"]["param"]) == (400, "chat_template")
        status, answer = await server.post(path, messages=[message("hi")], chat_template="{#" + longest[4:] + "#}hi")
        assert status == 400
        status, _ = await server.post(path, messages=[message("hi")], chat_template="{#" + longest[6:] + "#}hi")
        assert status == 200
