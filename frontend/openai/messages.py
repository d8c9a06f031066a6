"""Chat messages as clients send them -> the prompt's text; /tokenize renders them the same way."""

from __future__ import annotations

from typing import Any

from pagewire.ipc.errors import InvalidRequest

from ..templates.jobs import RenderChat
from ..templates.renderer import ChatRenderer
from .bodies.schema import ChatMessage, ChatRequest, TokenizeRequest

ROLES = ("system", "developer", "user", "assistant")
# Fields that only tools, audio and the like fill, and that an SDK's message object writes back empty.
EMPTY_FIELDS = ("refusal", "annotations", "audio", "function_call", "tool_calls", "tool_call_id")
EMPTY_VALUES: tuple[object, ...] = (None, "", [])


async def render_messages(renderer: ChatRenderer, request: ChatRequest | TokenizeRequest) -> str:
    """Return the prompt that a chat template makes of a request's messages: the model's, or the request's own.

    Raises:
        InvalidRequest: a message has a part that isn't served, the template refuses them, or the request brings one and
            may not.
    """
    assert request.messages is not None
    continues = bool(request.continue_final_message)
    # A continued message leaves no room for a new one, so that is what continue_final_message alone means.
    begins = not continues if request.add_generation_prompt is None else request.add_generation_prompt
    return await renderer.render(
        RenderChat(
            messages=[_as_mapping(message, index) for index, message in enumerate(request.messages)],
            add_generation_prompt=begins,
            continue_final_message=continues,
            template_arguments=request.chat_template_kwargs,
            source=request.chat_template,
        )
    )


def _as_mapping(message: ChatMessage, index: int) -> dict[str, Any]:  # Any: templates see plain JSON values
    where = f"messages[{index}]"
    if message.role not in ROLES:
        raise InvalidRequest(
            f"{where}.role must be one of {', '.join(ROLES)}; got {message.role!r} (tools are not supported yet).",
            param=f"{where}.role",
        )
    for name in EMPTY_FIELDS:
        if getattr(message, name) not in EMPTY_VALUES:
            raise InvalidRequest(f"{where}.{name} is not supported by this server (yet).", param=f"{where}.{name}")
    fields = {"role": message.role, "content": message.content, "name": message.name}
    reasoning = message.reasoning if message.reasoning is not None else message.reasoning_content
    # Templates of reasoning models read it by its older name.
    return fields | {"reasoning_content": reasoning, "reasoning": reasoning}
