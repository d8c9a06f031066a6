"""Tools, reasoning and forms of answers in /v1/chat/completions, over a scripted core."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagewire.frontend.answers.answer_formats import AnswerFormats, ReasoningFormat
from pagewire.frontend.answers.tool_parsers.formats import ToolFormat
from pagewire.frontend.templates.renderer import SplitRenderer
from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.requests import AddRequest
from tests.support.http_server import byte_tokenizer, joined_text, message, running_server
from tests.support.templates import InProcessRenderer

TEMPLATE = (
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{% for call in message.tool_calls %}"
    "[{{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
TIME_CALL = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
HERMES = AnswerFormats(tools=ToolFormat.HERMES)
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def serving(*texts: str, formats: AnswerFormats = HERMES, **options: Any):
    chats = SplitRenderer(InProcessRenderer(TEMPLATE), None)
    return running_server(*texts, formats=formats, chats=chats, info={"max_model_len": 2048}, **options)


def last_request(server) -> AddRequest:
    return [m for m in server.core.received if isinstance(m, AddRequest)][-1]


def prompt_of(server) -> str:
    return byte_tokenizer().decode(last_request(server).inputs.prompt_token_ids, skip_special_tokens=False)


def joined_calls(chunks: list[Any]) -> list[dict[str, Any]]:
    """The calls of a stream, put together as clients do."""
    calls: list[dict[str, Any]] = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            for delta in choice["delta"].get("tool_calls", ()):
                if delta["index"] == len(calls):
                    calls.append({"id": delta["id"], "type": delta["type"], "function": {**delta["function"]}})
                else:
                    assert "id" not in delta
                    assert "name" not in delta["function"]
                    calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    return calls


def finish_reasons(chunks: list[Any]) -> list[str]:
    return [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]


async def test_calls_are_read_alike_streamed_and_whole():
    async with serving("I look. " + CALL + "\n" + TIME_CALL) as server:
        answer = await server.chat(tools=[WEATHER, TIME])
        [choice] = answer["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == "I look."
        calls = choice["message"]["tool_calls"]
        assert [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls] == [
            ("get_weather", {"city": "Zürich"}),
            ("get_time", {}),
        ]
        assert len({call["id"] for call in calls}) == 2
        chunks = await server.stream_chat(tools=[WEATHER, TIME])
        assert joined_text(chunks) == "I look."
        assert [call["function"] for call in joined_calls(chunks)] == [call["function"] for call in calls]
        assert finish_reasons(chunks) == ["tool_calls"]


async def test_an_answer_of_calls_alone_has_no_content():
    async with serving(CALL) as server:
        [choice] = (await server.chat(tools=[WEATHER]))["choices"]
        assert choice["message"]["content"] is None
        [choice] = (await server.chat(tools=[WEATHER], tool_choice="none"))["choices"]
        assert choice["message"]["content"] == CALL
        assert "tool_calls" not in choice["message"]
        assert "tools:" not in prompt_of(server)


CHOICES: list[Any] = ["none", "auto", "required", NAMED]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("text", [CALL, "No."])
async def test_finish_reason_is_tool_calls_only_with_a_call_and_never_for_a_named_one(choice, text):
    expected = "tool_calls" if text == CALL and choice in ("auto", "required") else "stop"
    async with serving(text) as server:
        [whole] = (await server.chat(tools=[WEATHER], tool_choice=choice))["choices"]
        assert whole["finish_reason"] == expected
        assert ("tool_calls" in whole["message"]) == (text == CALL and choice != "none")
        chunks = await server.stream_chat(tools=[WEATHER], tool_choice=choice)
        assert finish_reasons(chunks) == [expected]
        assert bool(joined_calls(chunks)) == ("tool_calls" in whole["message"])


async def test_an_answer_that_is_cut_says_length_even_with_a_call():
    async with serving(CALL) as server:
        [choice] = (await server.chat(tools=[WEATHER], max_tokens=60))["choices"]
        assert choice["finish_reason"] == "length"
        assert choice["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"city": "')


async def test_without_parallel_calls_only_the_first_is_answered():
    async with serving(CALL + TIME_CALL) as server:
        [choice] = (await server.chat(tools=[WEATHER, TIME], parallel_tool_calls=False))["choices"]
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["get_weather"]


async def test_forced_calls_have_a_grammar():
    async with serving(CALL) as server:
        await server.chat(tools=[WEATHER, TIME], tool_choice="required")
        grammar = last_request(server).task.grammar
        assert grammar.kind == "grammar"
        assert "get_weather" in grammar.text
        assert "get_time" in grammar.text
        await server.chat(tools=[WEATHER, TIME], tool_choice=NAMED)
        assert "get_time" not in last_request(server).task.grammar.text
        await server.chat(tools=[WEATHER, TIME])
        assert last_request(server).task.grammar is None


async def test_a_model_of_unknown_format_takes_forced_calls_only():
    async with serving('{"name": "get_time", "parameters": {}}', formats=AnswerFormats()) as server:
        status, answer = await server.post("/v1/chat/completions", messages=[message("x")], tools=[TIME])
        assert status == 400
        assert "--tool-call-parser" in answer["error"]["message"]
        [choice] = (await server.chat(tools=[TIME], tool_choice="required"))["choices"]
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "get_time", "arguments": "{}"}


async def test_history_with_calls_is_rendered():
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Zürich"}'}}
    messages = [
        message("weather?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "assistant", "tool_calls": [], "content": ""},
        message("thanks"),
    ]
    async with serving("x") as server:
        await server.chat(messages=messages, tools=[WEATHER])
        text = prompt_of(server)
        assert text.startswith('tools: [{"type": "function", "function": {"name": "get_weather"')
        assert 'assistant: [get_weather {"city": "Zürich"}]\ntool: sunny\nassistant: \nuser: thanks\n' in text


async def test_what_an_sdk_parsed_may_be_sent_back_with_it():
    function = {"name": "get_time", "arguments": "{}", "parsed_arguments": {}}
    async with serving("x") as server:
        await server.chat(
            messages=[
                message("x"),
                {"role": "assistant", "parsed": {"a": 1}, "content": "{}", "function_call": None,
                 "tool_calls": [{"id": "1", "type": "function", "index": 0, "function": function}]},
                {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "noon"}]},
            ]
        )  # fmt: skip
        assert "assistant: {}[get_time {}]\ntool: noon\n" in prompt_of(server)


async def test_tokenize_counts_the_tools_too():
    async with serving("x") as server:
        await server.chat(tools=[WEATHER])
        _, answer = await server.post("/tokenize", messages=[message("hi")], tools=[WEATHER])
        assert answer["tokens"] == last_request(server).inputs.prompt_token_ids


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TIME, TIME]}, "tools[1]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": NAMED}, "tool_choice.function.name"),
        ({"tools": [TIME], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
    ],
)
async def test_tools_that_make_no_sense_are_a_400(fields, param):
    async with serving("x") as server:
        status, answer = await server.post("/v1/chat/completions", messages=[message("x")], **fields)
        assert (status, answer["error"]["param"]) == (400, param), answer


@pytest.mark.parametrize("stream", [False, True])
async def test_a_schema_that_the_engine_refuses_is_the_tools_fault(stream):
    fault = InvalidRequest("no schema", param="structured_outputs")
    async with serving("x", refuses=lambda request: fault) as server:
        body = {"messages": [message("x")], "stream": stream, "tools": [TIME], "tool_choice": "required"}
        status, answer = await server.post("/v1/chat/completions", **body)
        assert (status, answer["error"]["param"]) == (400, "tools")
        status, answer = await server.post("/v1/chat/completions", messages=[message("x")], guided_regex="(")
        assert (status, answer["error"]["param"]) == (400, "structured_outputs")


async def test_some_of_the_tools_may_be_allowed():
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    async with serving(TIME_CALL) as server:
        await server.chat(tools=[WEATHER, TIME], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
        assert "get_weather" not in last_request(server).task.grammar.text


async def test_documents_and_the_effort_reach_the_template():
    template = "{{ documents[0].text }}|{{ reasoning_effort }}|{{ enable_thinking }}"
    async with running_server("x", chats=SplitRenderer(InProcessRenderer(template), None)) as server:
        await server.chat(documents=[{"text": "fact"}], reasoning_effort="high")
        assert prompt_of(server) == "fact|high|"
        await server.chat(documents=[{"text": "fact"}], reasoning_effort="none")
        assert prompt_of(server) == "fact||False"


# ---- reasoning

THINKS = AnswerFormats(tools=ToolFormat.HERMES, reasoning=ReasoningFormat.QWEN3)


async def test_reasoning_is_apart_from_the_text():
    async with serving("<think>\nHm.\n</think>\n\nYes." + CALL, formats=THINKS) as server:
        answer = await server.chat(tools=[WEATHER])
        message_ = answer["choices"][0]["message"]
        assert (message_["reasoning"], message_["reasoning_content"], message_["content"]) == ("Hm.", "Hm.", "Yes.")
        assert len(message_["tool_calls"]) == 1
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] >= len("<think>\nHm.\n</think>")
        chunks = await server.stream_chat(tools=[WEATHER])
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        assert "".join(delta.get("reasoning", "") for delta in deltas) == "Hm."
        assert joined_text(chunks) == "Yes."
        hidden = await server.chat(tools=[WEATHER], include_reasoning=False)
        assert "reasoning" not in hidden["choices"][0]["message"]


async def test_a_template_may_open_the_block_itself():
    async with serving("Hm.</think>Yes.", formats=THINKS) as server:
        answer = await server.chat(chat_template_kwargs={"enable_thinking": True})
        assert answer["choices"][0]["message"]["reasoning"] == "Hm."
        answer = await server.chat()
        assert answer["choices"][0]["message"]["content"] == "Hm.</think>Yes."
        await server.chat(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
        assert prompt_of(server).endswith("<think>\n")


# ---- forms of answers

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}'),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
         "json_schema", json.dumps(SCHEMA, separators=(",", ":"))),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", '["a","b"]'),
        ({"guided_json": SCHEMA}, "json_schema", json.dumps(SCHEMA, separators=(",", ":"))),
        ({"guided_regex": "a+", "guided_decoding_backend": "outlines"}, "regex", "a+"),
        ({"guided_choice": ["a", "b"]}, "choice", '["a","b"]'),
        ({"guided_grammar": 'start: "a"'}, "grammar", 'start: "a"'),
        ({"response_format": {"type": "structural_tag", "structures": [], "triggers": ["<f"]}}, "structural_tag",
         '{"type":"structural_tag","structures":[],"triggers":["<f"]}'),
    ],
)  # fmt: skip
async def test_the_form_of_an_answer_reaches_the_core_by_any_spelling(fields, kind, text):
    async with serving("x") as server:
        await server.chat(**fields)
        grammar = last_request(server).task.grammar
        assert (grammar.kind, grammar.text) == (kind, text)
        await server.complete(**fields)
        assert last_request(server).task.grammar == grammar


async def test_text_is_no_form():
    async with serving("x") as server:
        await server.chat(response_format={"type": "text"}, guided_regex="a")
        assert last_request(server).task.grammar.kind == "regex"
        await server.chat(response_format={"type": "text"})
        assert last_request(server).task.grammar is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": {}, "structured_outputs": {"regex": "a"}}, "guided_json"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "text", "json_schema": {"schema": {}}}}, "response_format.json_schema"),
        ({"guided_decoding_backend": "mine"}, "guided_decoding_backend"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"guided_regex": ""}, "structured_outputs"),
    ],
)
async def test_forms_that_contradict_each_other_or_make_no_sense_are_a_400(fields, param):
    async with serving("x") as server:
        for path, body in (
            ("/v1/chat/completions", {"messages": [message("x")]}),
            ("/v1/completions", {"prompt": "x"}),
        ):
            status, answer = await server.post(path, **body, **fields)
            assert (status, answer["error"]["param"]) == (400, param), answer


async def test_a_form_comes_after_the_reasoning():
    async with serving("Hm.</think>{}", formats=THINKS) as server:
        await server.chat(response_format={"type": "json_object"}, chat_template_kwargs={"enable_thinking": True})
        assert last_request(server).task.grammar.text.startswith("%llguidance {}\nstart: think body\n")
        status, _ = await server.post(
            "/v1/chat/completions",
            messages=[message("x")],
            structured_outputs={"grammar": 'start: "a"'},
            chat_template_kwargs={"enable_thinking": True},
        )
        assert status == 400
