"""Messages, tools and fields of Anthropic's API -> a chat request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pagewire.ipc.errors import InvalidRequest

from ..openai.bodies.schema import ChatRequest, refuse_unsupported
from .request import Block, CountTokensRequest, InputMessage, InputTool, MessageRequest, OutputConfig, ToolChoice

JsonObject = dict[str, Any]  # Any: JSON of a chat request, checked once it is whole

# Fields that mean the same here and in a chat request.
_SAME_NAME = ("stream", "temperature", "top_k", "top_p", "min_p", "seed", "timeout", "priority", "cache_salt")


def chat_request(request: CountTokensRequest) -> ChatRequest:
    """Return the chat that answers a request.

    Raises:
        InvalidRequest: a block, a tool or a field isn't served.
    """
    refuse_unsupported(request)
    messages: list[JsonObject] = []
    if request.system:
        messages.append({"role": "system", "content": _text(request.system, "system")})
    for index, message in enumerate(request.messages):
        messages.extend(_chat_messages(message, f"messages[{index}]"))
    fields: JsonObject = {
        "model": request.model,
        "messages": messages,
        "chat_template_kwargs": request.chat_template_kwargs,
        "reasoning_effort": _effort(request),
        "response_format": _response_format(request.output_config),
        "tools": [_tool(tool, f"tools[{index}]") for index, tool in enumerate(request.tools or ())] or None,
    }
    if request.tool_choice is not None:
        fields |= _tool_choice(request.tool_choice, has_tools=bool(request.tools))
    if request.messages[-1].role == "assistant" and not messages[-1].get("tool_calls"):
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    if isinstance(request, MessageRequest):
        fields |= {name: getattr(request, name) for name in _SAME_NAME}
        fields |= {"max_tokens": request.max_tokens, "stop": request.stop_sequences or None}
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return msgspec.convert(given, ChatRequest)
    except msgspec.ValidationError as exc:
        raise InvalidRequest(f"The body has a wrong shape: {exc}.") from None


def _chat_messages(message: InputMessage, where: str) -> list[JsonObject]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "assistant":
        return [_answer(message.content, f"{where}.content")]
    written: list[JsonObject] = []
    texts: list[str] = []
    for index, block in enumerate(message.content):
        place = f"{where}.content[{index}]"
        if block.get("type") != "tool_result":
            texts.append(_block_text(block, place))
            continue
        if texts:
            written.append({"role": message.role, "content": "".join(texts)})
            texts = []
        written.append(_tool_result(block, place))
    if texts or not written:
        written.append({"role": message.role, "content": "".join(texts)})
    return written


def _answer(blocks: Sequence[Block], where: str) -> JsonObject:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[JsonObject] = []
    for index, block in enumerate(blocks):
        place = f"{where}[{index}]"
        match block.get("type"):
            case "thinking":
                thoughts.append(_string(block, "thinking", place))
            case "tool_use":
                arguments = msgspec.json.encode(block.get("input") or {}).decode()
                function = {"name": _string(block, "name", place), "arguments": arguments}
                calls.append({"id": _string(block, "id", place), "type": "function", "function": function})
            case _:
                texts.append(_block_text(block, place))
    answer: JsonObject = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if thoughts:
        answer["reasoning"] = "".join(thoughts)
    if calls:
        answer["tool_calls"] = calls
    return answer


def _tool_result(block: Block, where: str) -> JsonObject:
    content = block.get("content")
    if content is None:
        text = ""
    elif isinstance(content, str | list):
        text = _text(content, f"{where}.content")
    else:
        raise InvalidRequest(f"{where}.content must be a text or a list of blocks.", param=f"{where}.content")
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id", where), "content": text}


def _text(content: str | list[Any], where: str) -> str:  # Any: blocks inside blocks are not checked by then
    if isinstance(content, str):
        return content
    return "".join([_block_text(block, f"{where}[{index}]") for index, block in enumerate(content)])


def _block_text(block: Any, where: str) -> str:  # Any: as above
    if not isinstance(block, dict):
        raise InvalidRequest(f"{where} must be a block, like {{'type': 'text', 'text': ...}}.", param=where)
    kind = block.get("type")
    if kind != "text":
        raise InvalidRequest(
            f"{where}.type {str(kind)[:100]!r} is not supported by this server; it takes text, thinking, tool_use and "
            "tool_result, each where it belongs.",
            param=f"{where}.type",
        )
    return _string(block, "text", where)


def _string(block: Block, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{where}.{name} must be a text.", param=f"{where}.{name}")
    return value


def _tool(tool: InputTool, where: str) -> JsonObject:
    if tool.type not in (None, "custom"):
        raise InvalidRequest(
            f"{where}.type {tool.type!r} is not supported by this server; it has no tools of its own.",
            param=f"{where}.type",
        )
    if tool.input_schema is None:
        raise InvalidRequest(f"{where}.input_schema is missing.", param=f"{where}.input_schema")
    function: JsonObject = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice, *, has_tools: bool) -> JsonObject:
    fields: JsonObject = {}
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    match choice.type:
        case "tool":
            if choice.name is None:
                raise InvalidRequest("tool_choice of type tool needs a name.", param="tool_choice.name")
            fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        case "any":
            fields["tool_choice"] = "required"
        case "auto" | "none" if has_tools:  # without tools they ask for nothing
            fields["tool_choice"] = choice.type
    return fields


def _effort(request: CountTokensRequest) -> str | None:
    if request.thinking is not None and request.thinking.type == "disabled":
        return "none"
    return None if request.output_config is None else request.output_config.effort


def _response_format(config: OutputConfig | None) -> JsonObject | None:
    if config is None or config.format is None:
        return None
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": config.format.schema}}
