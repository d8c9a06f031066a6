"""Items, tools and fields become a chat request, or are refused by their place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pagewire.frontend.openai.responses.conversation import chat_request, input_items
from pagewire.frontend.openai.responses.request import ResponseRequest
from pagewire.ipc.errors import InvalidRequest


def translate(history: Any = (), **body: Any) -> dict[str, Any]:
    request = msgspec.convert({"input": "hi", **body}, ResponseRequest)
    chat = msgspec.to_builtins(chat_request(request, history, input_items(request)))
    chat["messages"] = [{name: value for name, value in m.items() if value is not None} for m in chat["messages"]]
    return chat


def test_a_text_is_a_users_message_behind_the_instructions():
    assert translate(instructions="be nice")["messages"] == [
        {"role": "system", "content": "be nice"},
        {"role": "user", "content": "hi"},
    ]


def test_content_parts_are_joined():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert translate(input=[{"role": "user", "content": parts}])["messages"] == [{"role": "user", "content": "ab"}]


def test_a_turn_with_thoughts_text_and_calls_is_one_message():
    items = [
        {"role": "user", "content": "weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
         "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get", "arguments": '{"a":1}',
         "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "get", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
    ]  # fmt: skip
    written = translate(input=items)["messages"]
    assert [message["role"] for message in written] == ["user", "assistant", "tool", "tool"]
    assert written[1]["content"] == "I look."
    assert written[1]["reasoning"] == "hm"
    assert [each["id"] for each in written[1]["tool_calls"]] == ["c1", "c2"]
    assert written[1]["tool_calls"][0]["function"]["name"] == "get"
    assert [(message["tool_call_id"], message["content"]) for message in written[2:]] == [("c1", "sun"), ("c2", "rain")]


def test_earlier_items_come_between_instructions_and_input():
    history = [{"type": "message", "role": "user", "content": "one", "id": "msg_1"}]
    written = translate(history, instructions="x", previous_response_id="resp_1")["messages"]
    assert [message["content"] for message in written] == ["x", "one", "hi"]


def test_null_is_not_given_also_where_nobody_knows_the_field():
    item = {"role": "user", "content": "a", "status": None, "agent": None}
    assert translate(input=[item])["messages"] == [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "web_search_call"}, "input[0].type"),
        ({"type": "item_reference", "id": "x"}, "input[0].type"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"role": "user", "content": "x", "extra": 1}, "input[0]"),
        ({"role": "user", "content": 1}, "input[0].content"),
        ({"type": "function_call", "name": "x", "arguments": "{}"}, "input[0]"),
    ],
)
def test_items_that_are_not_served_are_refused_by_their_place(item, param):
    with pytest.raises(InvalidRequest) as refused:
        translate(input=[item])
    assert refused.value.param == param


def test_tools_are_functions():
    tool = {"type": "function", "name": "get", "description": "d", "parameters": {"type": "object"}, "strict": True}
    chat = translate(tools=[tool], tool_choice={"type": "function", "name": "get"})
    [translated] = chat["tools"]
    assert translated["function"]["name"] == "get"
    assert translated["function"]["parameters"] == {"type": "object"}
    assert chat["tool_choice"]["function"] == {"name": "get"}


def test_some_tools_may_be_allowed():
    tools = [{"type": "function", "name": "get"}, {"type": "function", "name": "set"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get"}]}
    allowed = translate(tools=tools, tool_choice=choice)["tool_choice"]["allowed_tools"]
    assert allowed["mode"] == "required"
    assert [tool["function"]["name"] for tool in allowed["tools"]] == ["get"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "x"}], "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ],
)
def test_fields_that_are_not_served_are_refused_by_name(body, param):
    with pytest.raises(InvalidRequest) as refused:
        translate(**body)
    assert refused.value.param == param


def test_a_format_and_the_limits_go_on_to_the_chat():
    schema = {"type": "object"}
    chat = translate(
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        max_output_tokens=7, reasoning={"effort": "low"}, top_logprobs=2, temperature=0.5, metadata={"a": "b"},
    )  # fmt: skip
    assert chat["max_completion_tokens"] == 7
    assert chat["reasoning_effort"] == "low"
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 2)
    assert chat["temperature"] == 0.5
    assert chat["response_format"]["json_schema"]["schema"] == schema
