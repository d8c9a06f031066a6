"""A conversation becomes the same token ids whichever door it comes through."""

from __future__ import annotations

from typing import Any

import pytest

from pagewire.frontend.templates.renderer import SplitRenderer
from pagewire.ipc.requests import AddRequest
from tests.support.http_server import BOS, CHAT_TEMPLATE, Running, ids_of, message, running_server
from tests.support.templates import InProcessRenderer

WITH_BOS = "{{ bos_token }}" + CHAT_TEMPLATE
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "the result"}


def serving(template: str, *texts: str):
    return running_server(*texts, chats=SplitRenderer(InProcessRenderer(template), None))


async def prompt_of(server: Running, path: str, body: dict[str, Any]) -> list[int]:
    """Send a body, and return the prompt that reached the core."""
    status, answer = await server.post(path, **body)
    assert status == 200, answer
    *_, request = (each for each in server.core.received if isinstance(each, AddRequest))
    return request.inputs.prompt_token_ids


async def test_begin_of_text_stands_once_at_every_door():
    conversation = [message("hi")]
    async with serving(WITH_BOS, "x") as server:
        chat = await prompt_of(server, "/v1/chat/completions", {"messages": conversation})
        responses = await prompt_of(server, "/v1/responses", {"input": "hi"})
        messages = await prompt_of(server, "/v1/messages", {"messages": conversation, "max_tokens": 4, "model": "fake"})
        _, tokenized = await server.post("/tokenize", messages=conversation)
        completion = await prompt_of(server, "/v1/completions", {"prompt": "hi"})
    assert chat.count(BOS) == 1
    assert chat[0] == BOS
    assert chat == responses == messages == tokenized["tokens"]
    assert completion == ids_of("hi"), "whether a text gets one is the tokenizer's business"


@pytest.mark.parametrize(
    "answer",
    [
        {"content": "", "tool_calls": [CALL]},
        {"content": None, "tool_calls": [CALL]},
        {"tool_calls": [CALL]},
    ],
)
async def test_history_of_calls_reaches_the_template_whole(answer: dict[str, Any]):
    template = (
        "{% for m in messages %}[{{ m.role }}{% for c in m.tool_calls or [] %} calls {{ c.function.name }}{% endfor %}"
        "{% if m.content is string %}: {{ m.content }}{% endif %}]{% endfor %}"
    )
    history = [message("q"), {"role": "assistant", **answer}, RESULT]
    async with serving(template, "x") as server:
        prompt = await prompt_of(server, "/v1/chat/completions", {"messages": history})
    assert bytes(prompt).decode() == "[user: q][assistant calls f: ][tool: the result]"


@pytest.mark.parametrize("answer", [{"content": ""}, {"content": "", "tool_calls": []}])
async def test_empty_answer_in_the_history_is_kept(answer: dict[str, Any]):
    template = "{% for m in messages %}[{{ m.role }}{{ m.tool_calls is defined }}: {{ m.content }}]{% endfor %}"
    async with serving(template, "x") as server:
        history = [message("q"), {"role": "assistant", **answer}, message("r")]
        prompt = await prompt_of(server, "/v1/chat/completions", {"messages": history})
    assert bytes(prompt).decode() == "[userFalse: q][assistantFalse: ][userFalse: r]"
