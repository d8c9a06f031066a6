"""Whose template renders a chat, and what a start with a bad template leads to."""

from __future__ import annotations

import pytest

from pagewire.frontend.templates.jobs import RenderChat
from pagewire.frontend.templates.renderer import SplitRenderer, chat_renderer
from pagewire.frontend.text.template_source import TemplateSource
from pagewire.ipc.errors import ConfigError, InvalidRequest
from tests.support.templates import InProcessRenderer

USER = {"role": "user", "content": "hi"}
THEIRS = RenderChat(messages=[USER], source="theirs: {{ messages[0].content }}")
OURS = RenderChat(messages=[USER])


def source(text: str | None, given: str | None = None) -> TemplateSource:
    return TemplateSource(text=text, special_tokens={}, given=given)


async def test_a_request_may_not_bring_a_template_unless_it_is_trusted():
    renderer = SplitRenderer(InProcessRenderer("ours"), None)
    assert await renderer.render(OURS) == "ours"
    with pytest.raises(InvalidRequest, match="--trust-request-chat-template") as caught:
        await renderer.render(THEIRS)
    assert caught.value.param == "chat_template"


async def test_a_trusted_template_is_rendered_apart_from_the_models():
    renderer = SplitRenderer(InProcessRenderer("ours"), InProcessRenderer(None))
    assert await renderer.render(THEIRS) == "theirs: hi"
    assert await renderer.render(OURS) == "ours"


async def test_processes_run_while_the_context_is_open():
    async with chat_renderer(source("ours"), trusts_requests=True, log_level="warning") as renderer:
        assert await renderer.render(OURS) == "ours"
        assert await renderer.render(THEIRS) == "theirs: hi"


async def test_a_models_unusable_template_refuses_chats_but_not_the_start(caplog):
    async with chat_renderer(source("{% for %}"), trusts_requests=False, log_level="warning") as renderer:
        with pytest.raises(InvalidRequest, match="no chat template"):
            await renderer.render(OURS)
    assert "unusable" in caplog.text


@pytest.mark.parametrize("text", ["{% for %}", "{{ 9**(9**9) }}"])
async def test_a_given_template_that_is_none_fails_the_start(text):
    with pytest.raises(ConfigError, match=r"chat template my\.jinja: "):
        async with chat_renderer(source(text, "my.jinja"), trusts_requests=False, log_level="warning"):
            pass


async def test_default_variables_hold_where_a_request_brings_none():
    renderer = SplitRenderer(InProcessRenderer("{{ a }}{{ b }}"), None, {"a": 1, "b": 2})
    assert await renderer.render(OURS) == "12"
    assert await renderer.render(RenderChat(messages=[USER], template_arguments={"b": 3, "c": 4})) == "13"


@pytest.mark.parametrize(
    ("content_format", "content", "prompt"),
    [
        ("auto", [{"type": "text", "text": "hi"}], "hi"),
        ("string", [{"type": "text", "text": "hi"}], "hi"),
        ("openai", "hi", "[{'type': 'text', 'text': 'hi'}]"),
    ],
)
async def test_content_has_the_shape_that_was_asked_for(content_format, content, prompt):
    template = TemplateSource(text="{{ messages[0].content }}", special_tokens={}, content_format=content_format)
    chat = RenderChat(messages=[{"role": "user", "content": content}])
    async with chat_renderer(template, trusts_requests=False, log_level="warning") as renderer:
        assert await renderer.render(chat) == prompt
