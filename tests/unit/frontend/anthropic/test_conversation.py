"""Messages, tools and fields become a chat request, or are refused by their place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pagewire.frontend.anthropic.conversation import chat_request
from pagewire.frontend.anthropic.request import MessageRequest
from pagewire.ipc.errors import InvalidRequest


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def translate(**body: Any) -> dict[str, Any]:
    request = msgspec.convert({"max_tokens": 5, "messages": [user("hi")], **body}, MessageRequest)
    chat = msgspec.to_builtins(chat_request(request))
    chat["messages"] = [{name: value for name, value in m.items() if value is not None} for m in chat["messages"]]
    return chat


def test_the_system_comes_first():
    system = [{**text("a"), "cache_control": {"type": "ephemeral"}}, text("b")]
    assert translate(system=system)["messages"] == [{"role": "system", "content": "ab"}, user("hi")]


def test_a_loop_of_tools_becomes_messages_in_order():
    messages = [
        user("weather?"),
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""}, text("I look."),
            {"type": "tool_use", "id": "t1", "name": "get", "input": {"a": 1}},
        ]},
        user([
            {"type": "tool_result", "tool_use_id": "t1", "content": [text("sun")]},
            {"type": "tool_result", "tool_use_id": "t2", "content": "rain", "is_error": False},
            text("and now?"),
        ]),
    ]  # fmt: skip
    written = translate(messages=messages)["messages"]
    assert [message["role"] for message in written] == ["user", "assistant", "tool", "tool", "user"]
    assert (written[1]["content"], written[1]["reasoning"]) == ("I look.", "hm")
    [call] = written[1]["tool_calls"]
    assert (call["id"], call["function"]["name"], call["function"]["arguments"]) == ("t1", "get", '{"a":1}')
    assert [(message["tool_call_id"], message["content"]) for message in written[2:4]] == [
        ("t1", "sun"),
        ("t2", "rain"),
    ]
    assert written[4] == user("and now?")


def test_a_last_message_of_the_assistant_is_gone_on_with():
    chat = translate(messages=[user("hi"), {"role": "assistant", "content": "He"}])
    assert (chat["continue_final_message"], chat["add_generation_prompt"]) == (True, False)
    assert translate()["continue_final_message"] is None


def test_tools_and_their_choice():
    tool = {"name": "get", "description": "d", "input_schema": {"type": "object"}}
    chat = translate(tools=[tool], tool_choice={"type": "any", "disable_parallel_tool_use": True})
    [translated] = chat["tools"]
    assert translated["function"]["parameters"] == {"type": "object"}
    assert (chat["tool_choice"], chat["parallel_tool_calls"]) == ("required", False)
    named = translate(tools=[tool], tool_choice={"type": "tool", "name": "get"})["tool_choice"]
    assert named["function"] == {"name": "get"}
    assert translate(tools=[tool], tool_choice={"type": "none"})["tool_choice"] == "none"


def test_limits_and_formats_go_on_to_the_chat():
    schema = {"type": "object"}
    chat = translate(
        stop_sequences=["x"], top_k=3, thinking={"type": "disabled"},
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )  # fmt: skip
    assert (chat["max_tokens"], chat["stop"], chat["top_k"]) == (5, ["x"], 3)
    assert chat["reasoning_effort"] == "none"
    assert chat["response_format"]["json_schema"]["schema"] == schema


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [user([{"type": "image", "source": {}}])]}, "messages[0].content[0].type"),
        ({"messages": [user([{"type": "text"}])]}, "messages[0].content[0].text"),
        ({"messages": [user([{"type": "tool_result"}])]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [user([{"type": "tool_result", "tool_use_id": "t", "content": 1}])]},
         "messages[0].content[0].content"),
        ({"messages": [user([{"type": "tool_result", "tool_use_id": "t", "content": ["x"]}])]},
         "messages[0].content[0].content[0]"),
        ({"tools": [{"name": "x", "type": "web_search_20250305"}]}, "tools[0].type"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_refused_by_its_place(body, param):
    with pytest.raises(InvalidRequest) as refused:
        translate(**body)
    assert refused.value.param == param


def test_what_coding_assistants_send_along_is_taken():
    keeps_all = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    tool = {"name": "get", "input_schema": {}, "eager_input_streaming": True, "cache_control": {"type": "ephemeral"}}
    translate(context_management=keeps_all, tools=[tool], metadata={"user_id": "x"})
    with pytest.raises(InvalidRequest, match="context_management"):
        translate(context_management={"edits": [{"type": "clear_tool_uses_20250919"}]})
