"""`functions` and `function_call` in /v1/chat/completions, over a scripted core."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from pagewire.frontend.answers.answer_formats import AnswerFormats
from pagewire.frontend.answers.tool_parsers.formats import ToolFormat
from pagewire.frontend.templates.renderer import SplitRenderer
from pagewire.ipc.requests import AddRequest
from tests.support.http_server import byte_tokenizer, message, running_server
from tests.support.templates import InProcessRenderer

TEMPLATE = (
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{% for call in message.tool_calls %}"
    "[{{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %}{{ '\n' }}{% endfor %}assistant: "
)
FUNCTIONS = [{"name": "get_time", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]
CALL = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Bern"}}\n</tool_call>'
ARGUMENTS = '{"city": "Bern"}'


def serving(*texts: str, **options: Any):
    chats = SplitRenderer(InProcessRenderer(TEMPLATE), None)
    formats = AnswerFormats(tools=ToolFormat.HERMES)
    return running_server(*texts, formats=formats, chats=chats, info={"max_model_len": 2048}, **options)


def prompt_of(server) -> str:
    request = [each for each in server.core.received if isinstance(each, AddRequest)][-1]
    return byte_tokenizer().decode(request.inputs.prompt_token_ids, skip_special_tokens=False)


async def test_a_call_is_answered_in_kind_whole_and_streamed():
    async with serving(CALL + CALL) as server:
        answer = await server.chat(functions=FUNCTIONS)
        [choice] = answer["choices"]
        assert choice["finish_reason"] == "function_call"
        assert choice["message"]["function_call"] == {"name": "get_time", "arguments": ARGUMENTS}
        assert choice["message"]["content"] is None
        assert "tool_calls" not in choice["message"]
        chunks = await server.stream_chat(functions=FUNCTIONS, function_call="auto")
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        calls = [delta["function_call"] for delta in deltas if "function_call" in delta]
        assert [call["name"] for call in calls if "name" in call] == ["get_time"]
        assert "".join(call["arguments"] for call in calls) == ARGUMENTS
        assert not any("tool_calls" in delta for delta in deltas)
        assert chunks[-1]["choices"][0]["finish_reason"] == "function_call"


async def test_the_sdk_reads_it():
    async with (
        serving(CALL) as server,
        openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="key", max_retries=0) as client,
    ):
        answer = await client.chat.completions.create(model="fake", messages=[message("hi")], functions=FUNCTIONS)
        assert answer.choices[0].message.function_call.arguments == ARGUMENTS
        messages = [
            message("hi"),
            answer.choices[0].message,
            {"role": "function", "name": "get_time", "content": "noon"},
        ]
        await client.chat.completions.create(model="fake", messages=messages)
        assert prompt_of(server).startswith('user: hi\nassistant: [get_time {"city": "Bern"}]\ntool: noon\n')


async def test_a_named_function_is_forced_and_none_are_hidden():
    async with serving(CALL) as server:
        answer = await server.chat(functions=FUNCTIONS, function_call={"name": "get_time"})
        assert "get_time" in (await server.core.next(AddRequest)).task.grammar.text
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert "function_call" in answer["choices"][0]["message"]
        answer = await server.chat(functions=FUNCTIONS, function_call="none")
        assert "tools" not in prompt_of(server)
        assert answer["choices"][0]["message"]["content"] == CALL


async def test_a_batch_answers_in_kind_too():
    async with serving(CALL) as server:
        path = "/v1/chat/completions/batch"
        _, answer = await server.post(path, messages=[[message("a")], [message("b")]], functions=FUNCTIONS)
        assert [choice["message"]["function_call"]["name"] for choice in answer["choices"]] == ["get_time"] * 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"function_call": "auto"}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": "required"}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": {"name": "other"}}, "function_call.name"),
        ({"functions": FUNCTIONS * 2}, "functions"),
        ({"functions": FUNCTIONS, "tool_choice": "auto"}, "tool_choice"),
        ({"functions": FUNCTIONS, "tools": [{"type": "function", "function": FUNCTIONS[0]}]}, "tools"),
        ({"messages": [{"role": "user", "content": "x", "function_call": {"name": "f"}}]}, "messages[0].function_call"),
    ],
)
async def test_functions_that_make_no_sense_are_a_400(fields, param):
    async with serving("x") as server:
        status, answer = await server.post("/v1/chat/completions", **{"messages": [message("x")], **fields})
        assert (status, answer["error"]["param"]) == (400, param), answer


async def test_no_functions_are_none():
    async with serving("Hello") as server:
        answer = await server.chat(functions=[], function_call="none")
        assert answer["choices"][0]["message"]["content"] == "Hello"
