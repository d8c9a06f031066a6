"""Items of the Responses API -> chat messages, tools and fields of a chat request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from pagewire.ipc.errors import InvalidRequest

from ..bodies.schema import ChatRequest
from .request import ResponseRequest, TextFormat

JsonObject = dict[str, Any]  # Any: JSON of a client, checked field by field here

# Fields that mean the same here and in a chat request.
_SAME_NAME = (
    "model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens",
    "chat_template_kwargs", "timeout", "priority", "cache_salt", "parallel_tool_calls",
)  # fmt: skip


class _Item(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What items of the input have in common."""

    type: str = "message"
    id: str | None = None
    status: str | None = None


class _Message(_Item, kw_only=True):
    role: str
    content: str | list[JsonObject]
    phase: str | None = None  # whether a message came before the answer or is it


class _FunctionCall(_Item, kw_only=True):
    call_id: str
    name: str
    arguments: str


class _FunctionCallOutput(_Item, kw_only=True):
    call_id: str
    output: str | list[JsonObject]


class _Reasoning(_Item, kw_only=True):
    summary: list[JsonObject] = []
    content: list[JsonObject] | None = None
    encrypted_content: str | None = None


class _FunctionTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class _NamedTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    name: str


class _AllowedTools(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    mode: str
    tools: list[_NamedTool]


_ITEMS: dict[str, type[_Item]] = {
    "message": _Message,
    "function_call": _FunctionCall,
    "function_call_output": _FunctionCallOutput,
    "reasoning": _Reasoning,
}
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_T = TypeVar("_T", bound=msgspec.Struct)


def input_items(request: ResponseRequest) -> list[JsonObject]:
    """Return a request's own input as items; a text is one message of the user's."""
    if isinstance(request.input, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": request.input}]}]
    return [{"type": "message", **item} for item in request.input]


def chat_request(request: ResponseRequest, history: Sequence[JsonObject], items: Sequence[JsonObject]) -> ChatRequest:
    """Return the chat that answers a request.

    Args:
        request: its instructions, tools and limits are read.
        history: items of the responses that it goes on from, which were checked when they came.
        items: its own input.

    Raises:
        InvalidRequest: an item, a tool or a field isn't served.
    """
    messages = _Messages()
    if request.instructions:
        messages.add({"role": "system", "content": request.instructions})
    for index, item in enumerate(history):
        messages.add_item(item, f"input of {request.previous_response_id}[{index}]")
    for index, item in enumerate(items):
        messages.add_item(item, f"input[{index}]")
    fields: JsonObject = {name: getattr(request, name) for name in _SAME_NAME}
    fields["messages"] = messages.written
    fields["max_completion_tokens"] = request.max_output_tokens
    if request.tools:
        fields["tools"] = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(request.tools)]
    fields["tool_choice"] = _tool_choice(request.tool_choice)
    if not request.tools and fields["tool_choice"] in ("none", "auto"):
        del fields["tool_choice"]  # they ask for nothing
    if request.text is not None:
        fields["response_format"] = _response_format(request.text.format)
    if request.reasoning is not None:
        fields["reasoning_effort"] = request.reasoning.effort
    if request.top_logprobs is not None or "message.output_text.logprobs" in (request.include or ()):
        fields["logprobs"], fields["top_logprobs"] = True, request.top_logprobs or 0
    return _convert({name: value for name, value in fields.items() if value is not None}, ChatRequest, "")


class _Messages:
    """Chat messages as items make them: thoughts, text and calls of one turn become one message."""

    def __init__(self) -> None:
        self.written: list[JsonObject] = []

    def add(self, message: JsonObject) -> None:
        """Add a whole message."""
        self.written.append(message)

    def add_item(self, item: JsonObject, where: str) -> None:
        """Add an item; `where` is its place, for errors."""
        kind = item.get("type", "message")
        if kind not in _ITEMS:
            raise InvalidRequest(
                f"{where}.type {str(kind)[:100]!r} is not supported by this server; it takes {', '.join(_ITEMS)}.",
                param=f"{where}.type",
            )
        match _convert(item, _ITEMS[kind], where):
            case _Message() as message:
                self._add_message(message, where)
            case _FunctionCall() as call:
                function = {"name": call.name, "arguments": call.arguments}
                calls = self._answer_to_extend().setdefault("tool_calls", [])
                calls.append({"id": call.call_id, "type": "function", "function": function})
            case _FunctionCallOutput() as result:
                content = _text(result.output, f"{where}.output")
                self.add({"role": "tool", "tool_call_id": result.call_id, "content": content})
            case _Reasoning() as reasoning:
                parts = reasoning.content if reasoning.content else reasoning.summary
                self.add({"role": "assistant", "content": None, "reasoning": _text(parts, f"{where}.content")})

    def _add_message(self, message: _Message, where: str) -> None:
        content = _text(message.content, f"{where}.content")
        last = self.written[-1] if self.written else {}
        if message.role == "assistant" and set(last) == {"role", "content", "reasoning"} and last["content"] is None:
            last["content"] = content  # the thoughts before it are its own
        else:
            self.add({"role": message.role, "content": content})

    def _answer_to_extend(self) -> JsonObject:
        if not self.written or self.written[-1]["role"] != "assistant":
            self.add({"role": "assistant", "content": None})
        return self.written[-1]


def _text(content: str | list[JsonObject], where: str) -> str:
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for index, part in enumerate(content):
        kind = part.get("type")
        if kind == "refusal":
            text = part.get("refusal")
        elif kind in _TEXT_PARTS:
            text = part.get("text")
        else:
            raise InvalidRequest(
                f"{where}[{index}].type {str(kind)[:100]!r} is not supported by this server; it takes text alone.",
                param=f"{where}[{index}].type",
            )
        if not isinstance(text, str):
            raise InvalidRequest(f"{where}[{index}] has no text.", param=f"{where}[{index}].text")
        texts.append(text)
    return "".join(texts)


def _tool(tool: JsonObject, where: str) -> JsonObject:
    kind = tool.get("type")
    if kind != "function":
        raise InvalidRequest(
            f"{where}.type {str(kind)[:100]!r} is not supported by this server; it has no tools of its own, and takes "
            "functions alone.",
            param=f"{where}.type",
        )
    named = _convert(tool, _FunctionTool, where)
    function = {
        "name": named.name,
        "description": named.description,
        "parameters": named.parameters,
        "strict": named.strict,
    }
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _tool_choice(choice: str | JsonObject | None) -> str | JsonObject | None:
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    if kind == "allowed_tools":
        allowed = _convert(choice, _AllowedTools, "tool_choice")
        named = [{"type": "function", "function": {"name": tool.name}} for tool in allowed.tools]
        return {"type": kind, "allowed_tools": {"mode": allowed.mode, "tools": named}}
    if kind != "function":
        raise InvalidRequest(
            f"tool_choice.type {str(kind)[:100]!r} is not supported by this server; name a function, or send "
            "allowed_tools.",
            param="tool_choice.type",
        )
    return {"type": "function", "function": {"name": _convert(choice, _NamedTool, "tool_choice").name}}


def _response_format(text_format: TextFormat) -> JsonObject | None:
    match text_format.type:
        case "text":
            return None
        case "json_object":
            return {"type": "json_object"}
    if text_format.schema is None:
        raise InvalidRequest("text.format of type json_schema needs a schema.", param="text.format.schema")
    described = {
        "name": text_format.name or "answer",
        "schema": text_format.schema,
        "strict": text_format.strict,
        "description": text_format.description,
    }
    return {
        "type": "json_schema",
        "json_schema": {name: value for name, value in described.items() if value is not None},
    }


def _convert(value: JsonObject, struct: type[_T], where: str) -> _T:
    """Return JSON as a struct; what is null is not given, also where the struct has no such field."""
    given = {name: each for name, each in value.items() if each is not None}
    try:
        return msgspec.convert(given, struct)
    except msgspec.ValidationError as exc:
        reason, _, path = str(exc).partition(" - at ")
        inner = path.strip("`").removeprefix("$").lstrip(".")
        place = ".".join(each for each in (where, inner) if each) or None
        raise InvalidRequest(f"{place or 'The body'} has a wrong shape: {reason}.", param=place) from None
