"""Chat messages as clients send them -> the prompt's text; /tokenize renders them the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagewire.ipc.errors import InvalidRequest

from ..templates.jobs import RenderChat
from ..templates.renderer import ChatRenderer
from .bodies.schema import ChatMessage, ChatRequest, TokenizeRequest
from .bodies.tool_bodies import ToolCallBody
from .tool_use import offered_tools

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
# Fields that only audio and the like fill, and that an SDK's message object writes back empty.
EMPTY_FIELDS = ("refusal", "annotations", "audio")
EMPTY_VALUES: tuple[object, ...] = (None, "", [])


async def render_messages(
    renderer: ChatRenderer,
    request: ChatRequest | TokenizeRequest,
    *,
    default_arguments: Mapping[str, Any] | None = None,  # Any: variables of the template
) -> str:
    """Return the prompt that a chat template makes of a request's messages: the model's, or the request's own.

    Args:
        renderer: renders chats.
        request: its messages, tools, documents and all that is about the template.
        default_arguments: variables of the template that the request's own come before.

    Raises:
        InvalidRequest: a message has a part that isn't served, the template refuses them, or the request brings one and
            may not.
    """
    assert request.messages is not None
    continues = bool(request.continue_final_message)
    # A continued message leaves no room for a new one, so that is what continue_final_message alone means.
    begins = not continues if request.add_generation_prompt is None else request.add_generation_prompt
    tools = offered_tools(request)
    return await renderer.render(
        RenderChat(
            messages=[_as_mapping(message, index) for index, message in enumerate(request.messages)],
            add_generation_prompt=begins,
            continue_final_message=continues,
            tools=[tool.as_function() for tool in tools] or None,
            documents=request.documents,
            template_arguments=template_arguments(request, default_arguments or {}) or None,
            source=request.chat_template,
        )
    )


def template_arguments(
    request: ChatRequest | TokenizeRequest, defaults: Mapping[str, Any]
) -> dict[str, Any]:  # Any: variables of the template
    """Return the further variables of a request's template: its own come first, then what its fields say."""
    arguments = dict(defaults)
    effort = request.reasoning_effort if isinstance(request, ChatRequest) else None
    if effort == "none":
        arguments["enable_thinking"] = False  # Qwen's and others' name for it
    elif effort is not None:
        arguments["reasoning_effort"] = effort
    return arguments | (request.chat_template_kwargs or {})


def _as_mapping(message: ChatMessage, index: int) -> dict[str, Any]:  # Any: templates see plain JSON values
    where = f"messages[{index}]"
    if message.role not in ROLES:
        raise InvalidRequest(
            f"{where}.role must be one of {', '.join(ROLES)}; got {message.role[:100]!r}.", param=f"{where}.role"
        )
    for name in EMPTY_FIELDS:
        if getattr(message, name) not in EMPTY_VALUES:
            raise InvalidRequest(f"{where}.{name} is not supported by this server (yet).", param=f"{where}.{name}")
    calls = message.tool_calls or []
    if message.function_call is not None:
        if calls:
            raise InvalidRequest(
                f"{where} has tool_calls and function_call, which is their older form; send one of them.",
                param=f"{where}.function_call",
            )
        calls = [ToolCallBody(function=message.function_call)]
    if calls and message.role != "assistant":
        kind = "tool_calls" if message.tool_calls else "function_call"
        raise InvalidRequest(
            f"{where}.{kind} is for messages of the assistant, not of role {message.role!r}.", param=f"{where}.{kind}"
        )
    # What a function returned is to a template what a tool returned.
    fields = {
        "role": "tool" if message.role == "function" else message.role,
        "content": message.content,
        "name": message.name,
    }
    reasoning = message.reasoning if message.reasoning is not None else message.reasoning_content
    # Templates of reasoning models read it by its older name.
    return fields | {
        "reasoning_content": reasoning,
        "reasoning": reasoning,
        "tool_calls": [_as_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)],
        "tool_call_id": message.tool_call_id or None,
    }


def _as_call(call: ToolCallBody, where: str) -> dict[str, Any]:  # Any: as above
    if call.type not in (None, "function"):
        raise InvalidRequest(f"{where}.type must be 'function'; got {call.type[:100]!r}.", param=f"{where}.type")
    function = {"name": call.function.name, "arguments": call.function.arguments or {}}
    return {"id": call.id or "", "type": "function", "function": function}
